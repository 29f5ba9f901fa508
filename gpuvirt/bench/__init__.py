"""What driver calls cost, beside the bare transport in the same run: the measurements behind `gpuvirt bench`."""
