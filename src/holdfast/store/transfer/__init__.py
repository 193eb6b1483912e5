"""Export, import and copying of conversations and whole stores."""
