"""One question, or a file of them, to several model files: answers, figures, first differences."""
