"""JSON-RPC 2.0 between programs: frames, peers and transports. It knows nothing of agents."""
