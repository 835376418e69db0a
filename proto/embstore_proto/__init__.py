"""The wire of embstore: messages, framing of bulk calls, and the map of errors.

`v1/` holds the .proto file, which is the contract, and the code generated from it (`make proto`).
"""
