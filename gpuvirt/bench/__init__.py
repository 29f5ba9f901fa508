"""The measurements of `gpuvirt bench`: times of driver calls, beside the bare transport in the same run."""
