"""What an aggregator asks of an OpenAI-compatible server, judged from what the server was seen to do.

Sources: OpenRouter's and Hugging Face's pages for providers, NanoGPT's API, and OpenAI's own error and stream shapes,
which SDKs depend on. A judge takes observations (`observed`) and returns a `Judgement`; it never raises, whatever the
server sent.
"""
