"""Messages of one meaning in each API: the source of fixtures/canonical/vectors.json.

A sample is the list of elements that an API uses for the meaning; what the canonical form drops
(ids, marks, reasoning, `index`, the spelling of JSON) is different in each on purpose.
"""

from __future__ import annotations

import json
from typing import Any

from retention.digest import digest
from retention.model import Message, PartKind
from retention.providers import PROVIDERS

Json = Any
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR42mNoAAAAggCB2kUIOwAAAABJRU5ErkJggg=="
BLOB = {"$blob": digest("blob", PNG.encode()).hex(), "bytes": len(PNG)}
MARK = {"type": "ephemeral"}
STRINGS = ("openai", "deepseek", "mistral", "responses", "ollama")  # plain content is a string


def say(role: str, text: str) -> dict[str, list[Json]]:
    """A plain text of ROLE in each API."""
    samples: dict[str, list[Json]] = {
        api: [{"role": role, "content": text}] for api in (*STRINGS, "anthropic")
    }
    samples["gemini"] = [
        {"role": {"assistant": "model"}.get(role, role), "parts": [{"text": text}]}
    ]
    samples["bedrock"] = [{"role": role, "content": [{"text": text}]}]
    return samples


def call(arguments: Json, spelling: str) -> dict[str, list[Json]]:
    """A lone call of `read` in each API; SPELLING are the same arguments as a string of JSON."""
    chat = {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "read", "arguments": spelling},
            }
        ],
    }
    return {
        "openai": [chat],
        "deepseek": [{**chat, "reasoning_content": "Hm."}],
        "mistral": [{**chat, "content": ""}],
        "responses": [
            {"type": "function_call", "call_id": "c", "name": "read", "arguments": spelling}
        ],
        "anthropic": [
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "", "signature": "c2ln"},
                    {"type": "tool_use", "id": "toolu_1", "name": "read", "input": arguments},
                ],
            }
        ],
        "gemini": [
            {
                "role": "model",
                "parts": [
                    {
                        "functionCall": {"name": "read", "args": arguments, "id": "x"},
                        "thoughtSignature": "c2ln",
                    }
                ],
            }
        ],
        "ollama": [
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"function": {"index": 0, "name": "read", "arguments": arguments}}],
            }
        ],
        "bedrock": [
            {
                "role": "assistant",
                "content": [
                    {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "c2ln"}}},
                    {"toolUse": {"toolUseId": "t", "name": "read", "input": arguments}},
                ],
            }
        ],
    }


def answer(text: str) -> dict[str, list[Json]]:
    """A lone result in each API, in its plainest form."""
    chat = {"role": "tool", "tool_call_id": "call_1", "content": text}
    return {
        **{api: [chat] for api in ("openai", "deepseek", "mistral")},
        "responses": [{"type": "function_call_output", "call_id": "call_1", "output": text}],
        "anthropic": [
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": text}],
            }
        ],
        "gemini": [
            {
                "role": "user",
                "parts": [
                    {
                        "functionResponse": {
                            "name": "read",
                            "response": {"name": "read", "content": text},
                        }
                    }
                ],
            }
        ],
        "ollama": [{"role": "tool", "content": text}],
        "bedrock": [
            {
                "role": "user",
                "content": [
                    {
                        "toolResult": {
                            "toolUseId": "t",
                            "status": "success",
                            "content": [{"text": text}],
                        }
                    }
                ],
            }
        ],
    }


def answer_blocks(text: str) -> dict[str, list[Json]]:
    """The same result as blocks, as an error, with marks, and under other keys."""
    chat = {
        "role": "tool",
        "tool_call_id": "call_1",
        "content": [{"type": "text", "text": text, "cache_control": MARK}],
    }
    return {
        "openai": [chat],
        "responses": [
            {
                "type": "function_call_output",
                "call_id": "call_2",
                "id": "fc_2",
                "status": "completed",
                "output": [{"type": "input_text", "text": text}],
            }
        ],
        "anthropic": [
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "toolu_2",
                        "is_error": True,
                        "content": [{"type": "text", "text": text, "cache_control": MARK}],
                        "cache_control": MARK,
                    }
                ],
            }
        ],
        "gemini": [
            {
                "parts": [{"function_response": {"name": "read", "response": {"output": text}}}],
            }
        ],
        "bedrock": [
            {
                "role": "user",
                "content": [
                    {
                        "toolResult": {
                            "toolUseId": "t2",
                            "status": "error",
                            "content": [{"text": text}],
                        }
                    },
                    {"cachePoint": {"type": "default"}},
                ],
            }
        ],
    }


def prompt_blocks(text: str) -> dict[str, list[Json]]:
    """A plain prompt as a lone block, with marks where the API has them, and an empty block."""
    empty = {"type": "text", "text": ""}
    return {
        "anthropic": [
            {"role": "user", "content": [{"type": "text", "text": text, "cache_control": MARK}]}
        ],
        "openai": [
            {
                "role": "user",
                "content": [
                    empty,
                    {
                        "type": "text",
                        "text": text,
                        "prompt_cache_breakpoint": {"mode": "explicit"},
                    },
                ],
                "copilot_cache_control": MARK,
            }
        ],
        "responses": [
            {
                "type": "message",
                "id": "msg_1",
                "role": "user",
                "content": [{"type": "input_text", "text": text}],
            }
        ],
        "gemini": [{"role": "user", "parts": [{"text": ""}, {"text": text}]}],
        "bedrock": [
            {"role": "user", "content": [{"text": text}, {"cachePoint": {"type": "default"}}]}
        ],
    }


def prompt_media(data: Json, url: Json) -> dict[str, list[Json]]:
    """Text, a picture, text; DATA is base64, URL the same as a data URL."""
    chat = [
        {"type": "text", "text": "See"},
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": "What is it?"},
    ]
    return {
        "openai": [{"role": "user", "content": chat}],
        "mistral": [{"role": "user", "content": chat}],
        "responses": [
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "See"},
                    {"type": "input_image", "image_url": url},
                    {"type": "input_text", "text": "What is it?"},
                ],
            }
        ],
        "anthropic": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "See"},
                    {
                        "type": "image",
                        "source": {"type": "base64", "media_type": "image/png", "data": data},
                    },
                    {"type": "text", "text": "What is it?"},
                ],
            }
        ],
        "gemini": [
            {
                "role": "user",
                "parts": [
                    {"text": "See"},
                    {"inline_data": {"mime_type": "image/png", "data": data}},
                    {"text": "What is it?"},
                ],
            }
        ],
        "ollama": [{"role": "user", "content": "See What is it?", "images": [data]}],
        "bedrock": [
            {
                "role": "user",
                "content": [
                    {"text": "See"},
                    {"image": {"format": "png", "source": {"bytes": data}}},
                    {"text": "What is it?"},
                ],
            }
        ],
    }


def streamed(*texts: str) -> dict[str, list[Json]]:
    """An answer in several pieces, with reasoning among them."""
    anthropic = [{"type": "text", "text": text} for text in texts]
    return {
        "anthropic": [
            {
                "role": "assistant",
                "content": [
                    {"type": "redacted_thinking", "data": "c2ln"},
                    anthropic[0],
                    {"type": "thinking", "thinking": "", "signature": "c2ln"},
                    *anthropic[1:],
                ],
            }
        ],
        "gemini": [
            {
                "role": "model",
                "parts": [
                    {"text": "Hm.", "thought": True},
                    *({"text": text} for text in texts),
                    {"text": "", "thoughtSignature": "c2ln"},
                ],
            }
        ],
        "responses": [
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "c2ln"},
            {
                "type": "message",
                "id": "msg_1",
                "role": "assistant",
                "status": "completed",
                "content": [
                    {"type": "output_text", "text": text, "annotations": []} for text in texts
                ],
            },
        ],
        "openai": [
            {
                "role": "assistant",
                "content": "".join(texts),
                "refusal": None,
                "reasoning_details": [{"type": "reasoning.text", "text": "Hm."}],
            }
        ],
        "mistral": [
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]},
                    *anthropic,
                ],
            }
        ],
        "ollama": [{"role": "assistant", "content": "".join(texts), "thinking": "Hm."}],
        "bedrock": [{"role": "assistant", "content": [{"text": text} for text in texts]}],
    }


def reasoning_alone() -> dict[str, list[Json]]:
    """What the assistant sent without text or call."""
    return {
        "anthropic": [
            {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "c2ln"}]}
        ],
        "deepseek": [{"role": "assistant", "content": "", "reasoning_content": "Hm."}],
        "responses": [{"type": "reasoning", "id": "rs_1", "summary": []}],
        "gemini": [{"role": "model", "parts": [{"text": "", "thoughtSignature": "c2ln"}]}],
        "bedrock": [
            {"role": "assistant", "content": [{"reasoningContent": {"redactedContent": "c2ln"}}]}
        ],
    }


def system() -> dict[str, list[Json]]:
    """Instructions, where they stand in the array."""
    return {
        "openai": [{"role": "system", "content": "Be brief."}],
        "mistral": [{"role": "system", "content": [{"type": "text", "text": "Be brief."}]}],
        "responses": [{"role": "developer", "content": "Be brief."}],
        "ollama": [{"role": "system", "content": "Be brief.\n"}],
        "anthropic": [{"role": "system", "content": [{"type": "text", "text": "Be brief."}]}],
    }


def join(*samples: dict[str, list[Json]]) -> dict[str, list[Json]]:
    """The samples one after another, in the APIs that have them all."""
    apis = [api for api in samples[0] if all(api in sample for sample in samples)]
    return {api: [each for sample in samples for each in sample[api]] for api in apis}


ARGUMENTS = {"path": "naïve “a”.txt", "lines": [1, 2.5, {"deep": True}], "limit": None}
SPELLINGS = {
    "call": (ARGUMENTS, json.dumps(ARGUMENTS, ensure_ascii=True, indent=1)),
    "call, null written by Emacs": ({**ARGUMENTS, "limit": {}}, json.dumps(ARGUMENTS)),
    "call without arguments": ({}, ""),
    "call without arguments, null": (None, "null"),
    "call without arguments, not JSON": ({}, '{"path": '),
    "call with numbers": ({"n": [1000.0, 1e22, 0, 1]}, '{"n":[1e3,1e+22,-0,1]}'),
    "call with other order": (
        {"limit": {}, "path": "naïve “a”.txt", "lines": [1, 2.5, {"deep": True}]},
        '{"limit":{},"path":"na\\u00efve “a”.txt","lines":[1,2.50,{"deep":true}]}',
    ),
}

# name: samples.  Names with one beginning up to a comma have one meaning.
MEANINGS: dict[str, dict[str, list[Json]]] = {
    "user text": say("user", "Compare – please."),
    "user text, white space around": say("user", "\n Compare – please.\r\n\t"),
    "user text, as a block": prompt_blocks("Compare – please."),
    "assistant text": say("assistant", "Compare – please."),
    "assistant text, in pieces": streamed("Comp", "are –", " please.\n"),
    **{name: call(*spelling) for name, spelling in SPELLINGS.items()},
    "result": answer("Contents “a”\n  of it"),
    "result, white space around": answer("\nContents “a”\n  of it\n\n"),
    "result, as blocks": answer_blocks("Contents “a”\n  of it"),
    "result without text": answer(""),
    "results and a text": join(answer("A"), answer("B"), say("user", "Note.")),
    "media": prompt_media(PNG, "data:image/png;base64," + PNG),
    "media, kept apart": prompt_media(BLOB, BLOB),
    "reasoning alone": reasoning_alone(),
    "system text": system(),
}
MEANINGS["results and a text, in one message"] = {
    "anthropic": [
        {
            "role": "user",
            "content": [
                *answer("A")["anthropic"][0]["content"],
                *answer("B")["anthropic"][0]["content"],
                {"type": "text", "text": "Note."},
            ],
        }
    ],
    "bedrock": [
        {
            "role": "user",
            "content": [
                *answer("A")["bedrock"][0]["content"],
                *answer("B")["bedrock"][0]["content"],
                {"text": "Note."},
            ],
        }
    ],
}


def encode(value: Json) -> bytes:
    """VALUE as JSON text."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def list_parts(messages: list[Message]) -> list[list[str]]:
    """Kind and digest of the parts of MESSAGES; EMPTY ones only if there are no others."""
    parts = [part for message in messages for part in message.parts]
    full = [part for part in parts if part.kind is not PartKind.EMPTY]
    return [[part.kind.value, part.digest.hex()] for part in full or parts[:1]]


def make_vectors() -> list[Json]:
    """The vectors: for each meaning and API the messages, their roles and their parts."""
    vectors = []
    for name, samples in MEANINGS.items():
        for api, values in samples.items():
            texts = [encode(value) for value in values]
            messages = [PROVIDERS[api].parse(text) for text in texts]
            vectors.append(
                {
                    "meaning": name,
                    "api": api,
                    "messages": [text.decode() for text in texts],
                    "roles": [message.role.value for message in messages],
                    "parts": list_parts(messages),
                }
            )
    return vectors
