//! Fuzz bodies of the handshake and the control channel. No input may panic, and none may authenticate.
