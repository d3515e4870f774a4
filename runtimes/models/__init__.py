"""Model files on the disk: their headers, identity, and the memory that they will take. Running a
model does not belong here."""
