"""Programs that run inside sandboxes: stand-alone files, standard library only."""
