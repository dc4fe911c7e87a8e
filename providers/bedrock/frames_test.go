package bedrock

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash/crc32"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tollgate-gateway/tollgate/internal/sse"
	"github.com/tollgate-gateway/tollgate/providers"
)

// message makes a frame of headers and payload.
func message(headers, payload []byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(frameSize+len(headers)+len(payload)))
	b = binary.BigEndian.AppendUint32(b, uint32(len(headers)))
	b = binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
	b = append(append(b, headers...), payload...)
	return binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
}

func text(name, value string) []byte {
	b := append(append([]byte{byte(len(name))}, name...), typeString)
	return append(binary.BigEndian.AppendUint16(b, uint16(len(value))), value...)
}

func event(name, payload string) []byte {
	return message(append(text(nameType, "event"), text(nameEvent, name)...), []byte(payload))
}

type seen struct{ name, data string }

func readAll(src io.Reader) (all []seen, err error) {
	for f := newFrames(src); ; {
		ev, err := f.Next()
		if err != nil {
			if again, same := f.Next(); same == nil || again.Data != nil || f.Buffered() {
				return nil, errors.New("an error is not final")
			}
			return all, err
		}
		all = append(all, seen{string(ev.Name), string(ev.Data)})
	}
}

// The vectors are those of Amazon's own SDKs.
func TestVectors(t *testing.T) {
	t.Parallel()
	decode := func(text string) []byte {
		b, err := hex.DecodeString(text)
		require.NoError(t, err)
		return b
	}
	for name, vector := range map[string]string{
		"payload_no_headers":     "0000001d00000000fd528c5a7b27666f6f273a27626172277dc3653936",
		"payload_one_str_header": "0000003d0000002007fd83960c636f6e74656e742d747970650700106170706c69636174696f6e2f6a736f6e7b27666f6f273a27626172277d8d9c08b1",
		"int32_header":           "0000002d0000001041c424b80a6576656e742d74797065040000a00c7b27666f6f273a27626172277d36f480a0",
		"all_headers":            "000000cc000000af0fae64ca0a6576656e742d74797065040000a00c0c636f6e74656e742d747970650700106170706c69636174696f6e2f6a736f6e0a626f6f6c2066616c73650109626f6f6c207472756500046279746502cf08627974652062756606001449276d2061206c6974746c6520746561706f74210974696d657374616d70080000000000845fed05696e74313603002a05696e7436340500000000028757b20475756964090102030405060708090a0b0c0d0e0f107b27666f6f273a27626172277daba5f10c",
	} {
		headers, payload, err := newFrames(bytes.NewReader(decode(vector))).read()
		require.NoError(t, err, name)
		require.Equal(t, "{'foo':'bar'}", string(payload), name)
		_, err = readHeaders(headers)
		require.NoError(t, err, name)
	}
	for name, vector := range map[string]string{
		"corrupted_header_len": "0000003d0000002107fd83960c636f6e74656e742d747970650700106170706c69636174696f6e2f6a736f6e7b27666f6f273a27626172277d8d9c08b1",
		"corrupted_headers":    "0000003d0000002007fd83960c636f6e74656e742d747970650700106170706c69636174696f6e2f6a736f6e7b61666f6f273a27626172277d8d9c08b1",
		"corrupted_length":     "0000003e0000002007fd83960c636f6e74656e742d747970650700106170706c69636174696f6e2f6a736f6e7b27666f6f273a27626172277d8d9c08b1",
		"corrupted_payload":    "0000001d00000000fd528c5a5b27666f6f273a27626172277dc3653936",
	} {
		_, err := readAll(bytes.NewReader(decode(vector)))
		require.ErrorIs(t, err, providers.ErrFrame, name)
	}
}

func TestF080_AnyChunkingGivesTheSameFrames(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var stream []byte
		var want []seen
		for range rapid.IntRange(0, 5).Draw(t, "frames") {
			s := seen{rapid.StringN(0, 20, 20).Draw(t, "name"), rapid.StringN(0, 40, 40).Draw(t, "data")}
			want = append(want, s)
			stream = append(stream, event(s.name, s.data)...)
		}
		for _, src := range []io.Reader{bytes.NewReader(stream), iotest.OneByteReader(bytes.NewReader(stream)), iotest.DataErrReader(bytes.NewReader(stream))} {
			got, err := readAll(src)
			if !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
			require.Equal(t, want, got)
		}
		if len(stream) > 0 {
			cut := rapid.IntRange(0, len(stream)-1).Draw(t, "cut")
			got, err := readAll(bytes.NewReader(stream[:cut]))
			whole := 0
			for i, s := range got {
				require.Equal(t, want[i], s)
				whole += len(event(s.name, s.data))
			}
			require.Equal(t, whole == cut, errors.Is(err, io.EOF), "a frame that was cut is no end: %v", err)
			require.True(t, whole == cut || errors.Is(err, sse.ErrTruncated))
		}
	})
}

func TestF085_ExceptionsAreErrors(t *testing.T) {
	t.Parallel()
	exception := message(append(text(nameType, "exception"), text(nameFailed, "throttlingException")...), []byte(`{"message":"Too \"much\"."}`))
	unnamed := message(append(text(nameType, "exception"), text(nameFailed, "internalServerException")...), nil)
	protocol := message(append(append(text(nameType, "error"), text(nameCode, "InternalError")...), text(nameMessage, "Broken.")...), nil)
	got, err := readAll(bytes.NewReader(bytes.Join([][]byte{event("messageStart", "{}"), exception, unnamed, protocol}, nil)))
	require.ErrorIs(t, err, io.EOF)
	require.Equal(t, []seen{
		{"messageStart", "{}"},
		{"error", `{"__type":"throttlingException","message":"Too \"much\"."}`},
		{"error", `{"__type":"internalServerException","message":""}`},
		{"error", `{"__type":"InternalError","message":"Broken."}`},
	}, got)
}

func TestF079_FramesAreBounded(t *testing.T) {
	t.Parallel()
	prelude := func(size, head uint32) []byte {
		b := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, size), head)
		return binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
	}
	for name, tc := range map[string]struct {
		stream []byte
		want   error
	}{
		"a frame that claims 4 GiB":     {prelude(1<<32-1, 0), sse.ErrEventTooLarge},
		"one above the limit":           {prelude(sse.MaxEvent+1, 0), sse.ErrEventTooLarge},
		"too small":                     {prelude(15, 0), providers.ErrFrame},
		"headers longer than the frame": {prelude(100, 85), providers.ErrFrame},
		"headers above their limit":     {prelude(1<<20, maxHeaders+1), providers.ErrFrame},
		"a header cut":                  {message([]byte{5, 'a'}, nil), providers.ErrFrame},
		"a value cut":                   {message([]byte{1, 'a', typeString, 0, 9, 'x'}, nil), providers.ErrFrame},
		"a length cut":                  {message([]byte{1, 'a', typeString, 0}, nil), providers.ErrFrame},
		"an unknown type":               {message([]byte{1, 'a', 77}, nil), providers.ErrFrame},
		"no message type":               {message(nil, []byte("{}")), providers.ErrFrame},
		"claims much, has little":       {append(prelude(sse.MaxEvent, 0), "x"...), sse.ErrTruncated},
		"server-sent events":            {[]byte("data: {\"a\":1}\n\n"), providers.ErrFrame},
	} {
		got, err := readAll(bytes.NewReader(tc.stream))
		require.ErrorIs(t, err, tc.want, name)
		require.Empty(t, got, name)
	}
	f := newFrames(io.MultiReader(bytes.NewReader(event("big", strings.Repeat("x", 1<<20))), bytes.NewReader(event("small", "y"))))
	ev, err := f.Next()
	require.NoError(t, err)
	require.Len(t, ev.Data, 1<<20)
	ev, err = f.Next()
	require.NoError(t, err)
	require.Equal(t, "y", string(ev.Data))
	require.LessOrEqual(t, f.rest.Cap(), keepFrame, "a large frame's memory is not kept")
}

// Whole frames that have come already are told, so that a relay writes them at once.
func TestBuffered(t *testing.T) {
	t.Parallel()
	two := append(event("a", "1"), event("b", "2")...)
	f := newFrames(io.MultiReader(bytes.NewReader(two), iotest.ErrReader(io.ErrUnexpectedEOF)))
	require.False(t, f.Buffered())
	_, err := f.Next()
	require.NoError(t, err)
	require.True(t, f.Buffered())
	_, err = f.Next()
	require.NoError(t, err)
	require.False(t, f.Buffered())
	_, err = f.Next()
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
}

func FuzzFrames(f *testing.F) {
	f.Add(append(event("messageStart", `{"role":"assistant"}`), event("metadata", `{"usage":{"inputTokens":1,"outputTokens":2}}`)...))
	f.Add(message(append(text(nameType, "exception"), text(nameFailed, "x")...), []byte(`{"message":"\ud83d"}`)))
	f.Add(message([]byte{1, 'a', 9, 0}, nil))
	f.Fuzz(func(t *testing.T, stream []byte) {
		got, err := readAll(bytes.NewReader(stream))
		require.Error(t, err)
		again, same := readAll(iotest.OneByteReader(bytes.NewReader(stream)))
		require.Equal(t, got, again)
		require.Equal(t, err.Error(), same.Error())
		m := New().Meter(providers.BedrockConverse)
		for _, s := range got {
			m.Event(sse.Event{Name: []byte(s.name), Data: []byte(s.data)})
		}
		requireSane(t, m.Facts())
		m.Body(stream)
		requireSane(t, m.Facts())
	})
}

func requireSane(t *testing.T, f providers.Facts) {
	t.Helper()
	require.False(t, f.HasUsage && f.BadUsage)
	for _, n := range f.Usage.Quantities {
		require.GreaterOrEqual(t, n, int64(0))
	}
}
