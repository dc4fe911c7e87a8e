package audiolen_test

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tollgate-gateway/tollgate/internal/audiolen"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func seconds(file []byte) int64 { return audiolen.Seconds(bytes.NewReader(file), int64(len(file))) }

func pad(head string, size int) []byte { return append([]byte(head), make([]byte, size-len(head))...) }

func be32(n uint32) string { return string(binary.BigEndian.AppendUint32(nil, n)) }

func le32(n uint32) string { return string(binary.LittleEndian.AppendUint32(nil, n)) }

func TestSeconds(t *testing.T) {
	t.Parallel()
	wave := "RIFF\x00\x00\x00\x00WAVE" + "LIST" + le32(4) + "abcd" + "fmt " + le32(16) + "\x01\x00\x01\x00" + le32(16_000) + le32(32_000) + "\x02\x00\x10\x00"
	flac := "fLaC\x00\x00\x00\x22" + strings.Repeat("\x00", 10) + string(binary.BigEndian.AppendUint64(nil, 44_100<<44|44_100*7)) + strings.Repeat("\x00", 16)
	mp3 := "\xff\xfb\x90\x00"                                                              // MPEG 1, layer III, 128 kbit/s, 44.1 kHz
	xing := "\xff\xfb\x90\x00" + strings.Repeat("\x00", 32) + "Xing" + be32(1) + be32(383) // frames of 26.12 ms
	id3 := "ID3\x04\x00\x00\x00\x00\x01\x00" + strings.Repeat("\x00", 128)
	opus := "OggS" + strings.Repeat("\x00", 24) + "OpusHead" + strings.Repeat("\x00", 20)
	last := "OggS\x00\x04" + string(binary.LittleEndian.AppendUint64(nil, 48_000*9+1)) + "tail"
	movie := "\x00\x00\x00\x10ftypM4A \x00\x00\x00\x00" + "\x00\x00\x00\x0cfreeabcd" + "\x00\x00\x10\x00moov" + "\x00\x00\x00\x6cmvhd" +
		"\x00\x00\x00\x00" + be32(1) + be32(2) + be32(600) + be32(600*12) + strings.Repeat("\x00", 80)
	for name, tc := range map[string]struct {
		file []byte
		want int64
	}{
		"WAV":                           {pad(wave, 64_001), 3},
		"FLAC":                          {pad(flac, 500_000), 7},
		"MP3 of a fixed rate":           {pad(mp3, 160_000), 10},
		"MP3 of a variable rate":        {pad(xing, 50_000), 11},
		"MP3 behind a tag":              {pad(id3+mp3, 160_138), 10},
		"Opus":                          {append(pad(opus, 90_000), last...), 10},
		"MP4":                           {pad(movie, 100_000), 12},
		"unknown":                       {pad("\x1aE\xdf\xa3webm", 20_000), 10},
		"nothing":                       {nil, 0},
		"one byte":                      {[]byte("x"), 1},
		"shorter than it can be":        {pad(strings.Replace(movie, be32(600*12), be32(600), 1), 4_000_000), 10},
		"a rate of zero":                {pad(strings.Replace(wave, le32(32_000), le32(0), 1), 2_000), 1},
		"a box that ends before itself": {pad("\x00\x00\x00\x08ftyp\x00\x00\x00\x02free", 2_000), 1},
	} {
		require.Equal(t, tc.want, seconds(tc.file), name)
	}
}

func FuzzSeconds(f *testing.F) {
	f.Add([]byte("RIFF\x00\x00\x00\x00WAVEfmt \xff\xff\xff\xff"))
	f.Add([]byte("\x00\x00\x00\x10ftypM4A \x00\x00\x00\x00\x00\x00\x00\x08moov"))
	f.Add([]byte("ID3\x04\x00\x00\x7f\x7f\x7f\x7f"))
	f.Add([]byte("OggS\x01vorbis"))
	f.Fuzz(func(t *testing.T, file []byte) {
		n := seconds(file)
		require.GreaterOrEqual(t, n*400_000, int64(len(file)))
		require.LessOrEqual(t, n, int64(1<<24))
	})
}
