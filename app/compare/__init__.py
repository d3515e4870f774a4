"""The same question to several files: their answers, their figures, and where they part."""
