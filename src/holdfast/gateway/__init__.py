"""The gateway: what comes in from chats and programs is answered once, in the place it came from."""
