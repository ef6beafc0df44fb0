"""The tests; a package, so that no other one of that name is found instead."""
