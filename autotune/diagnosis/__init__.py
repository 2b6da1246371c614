"""What limits training, and what to do about it. Pure: no clock, no torch, no I/O."""
