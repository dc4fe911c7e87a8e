// Package mock is a scripted upstream: OpenAI-, Anthropic- and Gemini-shaped, able to fail in every way that providers were seen
// to fail, with a log of what reached it. The demo, the tests, the drills and the load runs use it.
//
// # Answers
//
// Without a script every answer is deterministic. A text answer is the nine words of [DefaultText], one frame of a
// stream for each, cut to what the request allows (max_tokens and its relatives; 16 for legacy completions). Usage is
// predictable: output tokens are the words that were sent, summed over n choices; input tokens are a quarter, rounded up
// and at least 1, of the bytes of the prompt's text, which are the string values inside contents, systemInstruction,
// messages, input, prompt, system, instructions, query and documents, except those of the members role, type, id, name, url, data, detail, media_type,
// call_id and tool_call_id. Streams of chat and legacy completions carry usage only where stream_options.include_usage
// asks for it, as OpenAI does: null in every frame, and a last frame with empty choices. Responses have encrypted reasoning
// where include asks for reasoning.encrypted_content.
//
// Every answer carries X-Mock-Request, the number of the request in the log, and X-Mock-Body-Sha256.
//
// # Choosing a script
//
// The first of these that is there decides: the header X-Mock-Script; the newest rule of POST /_script that fits; a
// model named mock-SCRIPT, where SCRIPT is a script (mock-small is only a name); else the answer without a script.
//
//	POST   /_script   {"script": "status(503)", "times": 2, "path": "/chat/completions", "match": {"user": "u1"}}
//	GET    /_script   the rules, newest first
//	DELETE /_script   forgets them
//	GET    /_log      what was seen (?after=ID: only later ones); DELETE forgets it
//	GET    /_count    {"count", "in_flight", "in_flight_max", "aborted", "ended"}; with ?count=N, ?ended=N, ?aborted=N
//	                  or ?in_flight=N it answers once that many are reached (?timeout=10s, then 504)
//	POST   /_batches  ?status=S: what batches come to from now on, e.g. in_progress until it is completed
//	POST   /_release  lets requests that wait (hold, confirm) go one step on: ?id=N only that one, ?steps=K more steps
//
// All members of a rule but script are optional: times 0 is until further notice, path is the end of the path, match
// compares members of the body with strings.
//
// # Language
//
// A script is a list of directives, separated by commas: frame_gap(50ms),reset_after(3). Arguments are durations as Go
// writes them, sizes (17m = 17 MiB, 70k), numbers, or text (in double quotes where it has a comma, quote or bracket).
// n counts the frames of a stream from the first (its role frame included), the bytes of any other answer. The
// directives are listed by [Help].
package mock
