"""Embed a conversation in a Python program: python examples/chat.py [MODEL]"""

import sys

import pantheon

with pantheon.load(sys.argv[1] if len(sys.argv) > 1 else "smollm2") as model:
    chat = model.chat(system="You are a helpful assistant.")
    for piece in chat.stream("What is the capital of France?"):
        print(piece, end="", flush=True)
    print()
    print(chat.send("And Germany?").text)
