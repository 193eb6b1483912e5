"""JSON-RPC 2.0 between programs: frames, a peer, and what carries them. It knows nothing of agents."""
