"""The wire protocol of embstore: messages, framing of bulk calls, and the codes of errors.

`v1/` contains the .proto file, which is the contract, and the code generated from it (`make
proto`).
"""
