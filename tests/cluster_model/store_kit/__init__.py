"""A metadata store that loses answers, for tests of whoever uses one."""
