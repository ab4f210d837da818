"""Who may do what: authentication, access control lists and users' credentials."""
