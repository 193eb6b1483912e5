"""The parts of the full screen: what is on it, how it looks, and what each part does with keys and mouse."""
