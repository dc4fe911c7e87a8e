package e2e

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	official "github.com/openai/openai-go/v3"
	community "github.com/sashabaranov/go-openai"
	"github.com/stretchr/testify/require"

	"github.com/tollgate-gateway/tollgate/internal/mock"
)

// addPriced offers a model whose price is in the given units alone, in US dollars per million.
func (f *fleet) addPriced(name, upstream string, prices map[string]string) {
	f.t.Helper()
	for unit, price := range prices {
		f.create("prices", object{
			"provider": "mock", "upstream_model": upstream, "unit": unit, "usd_per_million": price, "effective_from": "2026-01-01T00:00:00Z",
		})
	}
	f.create("models", object{"name": name, "targets": []object{
		{"provider_id": f.provider, "upstream_model": upstream, "weight": 1, "priority": 0},
	}})
}

func (p *process) community(key string) *community.Client {
	config := community.DefaultConfig(key)
	config.BaseURL, config.HTTPClient = p.baseURL+"/v1", client
	return community.NewClientWithConfig(config)
}

// Two libraries make pictures, speak and listen through the product; each call is one row, in its own unit and at its own
// price, and the books balance.
func TestMedia_LibrariesAndRows(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{})
	f.addPriced("painter", "mock-ok_no_usage", map[string]string{"image": "40000"})
	f.addPriced("speaker", "mock-words(3)", map[string]string{"character": "15"})
	f.addPriced("listener", "mock-seconds(90)", map[string]string{"second": "100"})
	f.addPriced("ranker", "mock-ok", map[string]string{"search": "2000"})
	key, _ := f.issue(object{"kind": "budget", "metric": "cost", "amount": "10", "window": object{"type": "total"}})
	f.awaitModels(key, "painter", "speaker", "listener", "ranker")
	gateway, ctx := f.gateways[0], t.Context()
	audio := append([]byte("ID3\x04\x00\x00\x00\x00\x00\x00"), bytes.Repeat([]byte{0x55}, 600<<10)...)
	said := strings.TrimSpace(mock.DefaultText)

	newer := gateway.sdk(key)
	pictures, err := newer.Images.Generate(ctx, official.ImageGenerateParams{Model: "painter", Prompt: "A cat.", N: official.Int(2)})
	require.NoError(t, err)
	require.Len(t, pictures.Data, 2)
	pictures, err = newer.Images.Edit(ctx, official.ImageEditParams{Model: "painter", Prompt: "A hat.", Image: official.ImageEditParamsImageUnion{
		OfFile: official.File(strings.NewReader("\x89PNG"), "cat.png", "image/png"),
	}})
	require.NoError(t, err)
	require.Len(t, pictures.Data, 1)
	sound, err := newer.Audio.Speech.New(ctx, official.AudioSpeechNewParams{
		Model: "speaker", Input: "Grüße!", Voice: official.AudioSpeechNewParamsVoiceUnion{OfString: official.String("alloy")},
	})
	require.NoError(t, err)
	heard, err := io.ReadAll(sound.Body)
	require.NoError(t, err)
	require.NoError(t, sound.Body.Close())
	require.True(t, bytes.HasPrefix(heard, []byte("ID3")))
	transcript, err := newer.Audio.Transcriptions.New(ctx, official.AudioTranscriptionNewParams{
		Model: "listener", File: official.File(bytes.NewReader(audio), "a.mp3", "audio/mpeg"),
	})
	require.NoError(t, err)
	require.Equal(t, said, strings.TrimSpace(transcript.Text))
	stream := newer.Audio.Transcriptions.NewStreaming(ctx, official.AudioTranscriptionNewParams{
		Model: "listener", File: official.File(bytes.NewReader(audio), "a.mp3", "audio/mpeg"),
	})
	var pieces strings.Builder
	for stream.Next() {
		pieces.WriteString(stream.Current().Delta)
	}
	require.NoError(t, stream.Err())
	require.Equal(t, said, strings.TrimSpace(pieces.String()))

	older := gateway.community(key)
	image, err := older.CreateImage(ctx, community.ImageRequest{Model: "painter", Prompt: "A cat.", N: 1})
	require.NoError(t, err)
	require.Len(t, image.Data, 1)
	raw, err := older.CreateSpeech(ctx, community.CreateSpeechRequest{Model: "speaker", Input: "Grüße!", Voice: community.VoiceAlloy})
	require.NoError(t, err)
	again, err := io.ReadAll(raw)
	require.NoError(t, err)
	require.NoError(t, raw.Close())
	require.Equal(t, heard, again)
	spoken, err := older.CreateTranscription(ctx, community.AudioRequest{Model: "listener", FilePath: "a.mp3", Reader: bytes.NewReader(audio)})
	require.NoError(t, err)
	require.Equal(t, said, strings.TrimSpace(spoken.Text))

	ranked := must(t)(gateway.call(ctx, key, "/v2/rerank", `{"model":"ranker","query":"capital","documents":["Bern","Oslo"]}`))
	require.Equal(t, http.StatusOK, ranked.status, "%s", ranked.body)
	require.Equal(t, "0.002", ranked.header.Get("X-Tollgate-Cost-Usd"))
	receipt := must(t)(gateway.get(ctx, key, "/v1/receipts/"+ranked.header.Get("X-Request-Id"))).json(t)
	require.Equal(t, "0.002", receipt["cost_usd"])

	f.requireBooksBalance()
	var got []string
	for _, row := range f.rows() {
		quantities, _ := row["quantities"].(object)
		delete(quantities, "request")
		for unit, n := range quantities {
			if number, ok := n.(float64); ok && unit != "input" && unit != "output" {
				got = append(got, text(row["route"])+" "+unit+" "+text(row["cost_usd"])+strings.Repeat("·", min(int(number), 3)))
			}
		}
	}
	slices.Sort(got)
	require.Equal(t, []string{
		"audio.speech character 0.00009···", "audio.speech character 0.00009···",
		"audio.transcriptions second 0.009···", "audio.transcriptions second 0.009···", "audio.transcriptions second 0.009···",
		"images.edits image 0.04·", "images.generations image 0.04·", "images.generations image 0.08··",
		"rerank search 0.002·",
	}, got)
}

// A budget of money holds to the nano-dollar for what is charged by the piece, however many ask at once.
func TestMedia_ABudgetHoldsForPictures(t *testing.T) {
	t.Parallel()
	f := startFleet(t, fleetOptions{gateways: 2})
	f.addPriced("painter", "mock-ok_no_usage", map[string]string{"image": "40000"})
	key, _ := f.issue(object{"kind": "budget", "metric": "cost", "amount": "0.1", "window": object{"type": "total"}})
	f.awaitModels(key, "painter")
	const calls = 6
	ended := make(chan int, calls)
	for i := range calls {
		go func() {
			sdk := f.gateways[i%2].sdk(key)
			_, err := sdk.Images.Generate(t.Context(), official.ImageGenerateParams{Model: "painter", Prompt: "A cat."})
			status := http.StatusOK
			if e := (*official.Error)(nil); errors.As(err, &e) {
				status = e.StatusCode
			} else if err != nil {
				status = 0
			}
			ended <- status
		}()
	}
	statuses := map[int]int{}
	for range calls {
		statuses[<-ended]++
	}
	require.Equal(t, map[int]int{http.StatusOK: 2, http.StatusTooManyRequests: 4}, statuses)
	f.requireBooksBalance()
	require.Len(t, f.rows(), 2)
}
