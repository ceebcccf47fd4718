"""Between machines: the study, the kits, the two ends of a training, and who starts it."""
