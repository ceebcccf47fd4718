"""Between machines: the study, the kits, the two ends of a training, and the submitter who starts it."""
