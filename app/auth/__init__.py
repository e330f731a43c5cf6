"""Who may send, and how much: write keys, their file, quotas, and the guards of the whole process."""
