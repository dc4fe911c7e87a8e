// Package audiolen estimates how long the audio of a file lasts from what its container says and from its size, without
// decoding any of it.
package audiolen

import (
	"bytes"
	"encoding/binary"
	"io"
	"math"
)

const (
	// slowest is the bytes of a second of speech in the leanest codecs that clients send (16 kbit/s): what is said of a file
	// whose container tells nothing is never too short by much.
	slowest = 2_000
	// fastest is the bytes of a second that no audio has more of (24 bits of two channels at 48 kHz have 288,000): a container
	// that says a file is shorter is not believed.
	fastest = 400_000
	longest = 1 << 24 // seconds that are believed, half a year

	headLength = 64 << 10
	tailLength = 64 << 10
)

// Seconds estimates the length of a file of size bytes, from above where it must guess; a second that has begun is a whole
// one. It knows WAV, FLAC, MP3, Ogg and MP4; any other file is taken for lean speech.
func Seconds(file io.ReaderAt, size int64) int64 {
	head := read(file, 0, min(size, headLength))
	if len(head) == 0 {
		return 0
	}
	length, ok := wav(head, size)
	for _, known := range []func() (float64, bool){
		func() (float64, bool) { return flac(head) },
		func() (float64, bool) { return ogg(head, file, size) },
		func() (float64, bool) { return mp4(head, file, size) },
		func() (float64, bool) { return mp3(head, file, size) },
	} {
		if !ok {
			length, ok = known()
		}
	}
	seconds := (size + slowest - 1) / slowest
	if ok && length >= 0 && length <= longest {
		seconds = int64(math.Ceil(length))
	}
	return max(seconds, (size+fastest-1)/fastest)
}

// read returns up to n bytes at at; fewer where the file has not so many or cannot be read.
func read(file io.ReaderAt, at, n int64) []byte {
	b := make([]byte, n)
	got, _ := file.ReadAt(b, at) // what cannot be read is as good as not there
	return b[:got]
}

func wav(head []byte, size int64) (float64, bool) {
	if len(head) < 12 || string(head[:4]) != "RIFF" || string(head[8:12]) != "WAVE" {
		return 0, false
	}
	for at := 12; at+20 <= len(head); {
		length := int(binary.LittleEndian.Uint32(head[at+4:]))
		if string(head[at:at+4]) == "fmt " {
			rate := binary.LittleEndian.Uint32(head[at+16:])
			return float64(size) / float64(rate), rate > 0
		}
		if length < 0 || length > len(head) {
			return 0, false
		}
		at += 8 + length + length%2
	}
	return 0, false
}

func flac(head []byte) (float64, bool) {
	if len(head) < 26 || string(head[:4]) != "fLaC" {
		return 0, false
	}
	info := head[8:] // behind the header of the first block, which STREAMINFO must be
	packed := binary.BigEndian.Uint64(info[10:])
	rate, samples := packed>>44, packed&(1<<36-1)
	return float64(samples) / float64(rate), rate > 0 && samples > 0
}

func ogg(head []byte, file io.ReaderAt, size int64) (float64, bool) {
	if !bytes.HasPrefix(head, []byte("OggS")) {
		return 0, false
	}
	rate := uint32(0)
	if bytes.Contains(head[:min(len(head), 256)], []byte("OpusHead")) {
		rate = 48_000 // its positions count at this rate, whatever the sound has
	} else if at := bytes.Index(head[:min(len(head), 256)], []byte("\x01vorbis")); at >= 0 && at+16 <= len(head) {
		rate = binary.LittleEndian.Uint32(head[at+12:])
	}
	tail := read(file, max(size-tailLength, 0), min(size, tailLength))
	last := bytes.LastIndex(tail, []byte("OggS"))
	if rate == 0 || last < 0 || last+14 > len(tail) {
		return 0, false
	}
	samples := binary.LittleEndian.Uint64(tail[last+6:])
	return float64(samples) / float64(rate), samples < 1<<62
}

func mp4(head []byte, file io.ReaderAt, size int64) (float64, bool) {
	if len(head) < 8 || string(head[4:8]) != "ftyp" {
		return 0, false
	}
	const boxes = 1_000
	at := int64(0)
	for range boxes {
		box := read(file, at, min(16, max(size-at, 0)))
		if len(box) < 8 {
			return 0, false
		}
		length, header := int64(binary.BigEndian.Uint32(box)), int64(8)
		if length == 1 && len(box) == 16 {
			length, header = int64(binary.BigEndian.Uint64(box[8:])&math.MaxInt64), 16
		}
		switch string(box[4:8]) {
		case "moov":
			at += header
			continue
		case "mvhd":
			return movieHeader(read(file, at+header, min(32, size-at-header)))
		}
		if length < header || length > size-at {
			return 0, false
		}
		at += length
	}
	return 0, false
}

func movieHeader(b []byte) (float64, bool) {
	if len(b) < 32 {
		return 0, false
	}
	rate, units := uint64(binary.BigEndian.Uint32(b[12:])), uint64(binary.BigEndian.Uint32(b[16:]))
	if b[0] == 1 {
		rate, units = uint64(binary.BigEndian.Uint32(b[20:])), binary.BigEndian.Uint64(b[24:])
	}
	return float64(units) / float64(rate), rate > 0 && units > 0
}

// mp3 reads the first frame: the number of frames where an encoder of a variable rate says it, else the rate of this frame.
func mp3(head []byte, file io.ReaderAt, size int64) (float64, bool) {
	at := int64(0)
	if len(head) >= 10 && string(head[:3]) == "ID3" {
		at = 10 + int64(head[6]&0x7f)<<21 + int64(head[7]&0x7f)<<14 + int64(head[8]&0x7f)<<7 + int64(head[9]&0x7f)
	}
	frame := read(file, at, min(64, max(size-at, 0)))
	if len(frame) < 48 || frame[0] != 0xff || frame[1]&0xe0 != 0xe0 {
		return 0, false
	}
	version, layer := frame[1]>>3&3, frame[1]>>1&3
	index, sampling := frame[2]>>4, frame[2]>>2&3
	if layer != 1 || version == 1 || sampling == 3 || index == 0 || index == 15 { // layer III alone
		return 0, false
	}
	// kbit/s of layer III by index, and Hz, of MPEG 1 and of its halves 2 and 2.5 (ISO 11172-3, 13818-3).
	kbits := [15]float64{0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160}
	rate, samples, side := [3]float64{44_100, 48_000, 32_000}[sampling], 1_152.0, 32
	mono := frame[3]>>6 == 3
	switch {
	case version == 3:
		kbits = [15]float64{0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320}
		if mono {
			side = 17
		}
	default:
		samples, side = 576, 17
		if mono {
			side = 9
		}
		if rate /= 2; version == 0 {
			rate /= 2
		}
	}
	if tag := frame[4+side:]; len(tag) >= 12 && (string(tag[:4]) == "Xing" || string(tag[:4]) == "Info") && tag[7]&1 == 1 {
		return float64(binary.BigEndian.Uint32(tag[8:])) * samples / rate, true
	}
	return float64(size-at) * 8 / (kbits[index] * 1000), true
}
