"""What Ottla's client consumes and produces, beside other clients."""
