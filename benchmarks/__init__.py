"""Scripts around the measurements; a package, so that no installed one of this name (Opacus brings one) hides it."""
