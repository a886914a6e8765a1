def estimate_tokens(text: str, api: str) -> int:
    return len(text)//4
