"""The platforms that the gateway serves, one module or package each."""
