"""Model providers: one adapter a wire format, all behind the same one-method protocol."""
