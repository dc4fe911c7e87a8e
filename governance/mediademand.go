package governance

import (
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/tollgate-gateway/tollgate/internal/audiolen"
	"github.com/tollgate-gateway/tollgate/internal/formdata"
	"github.com/tollgate-gateway/tollgate/internal/jsonedit"
	"github.com/tollgate-gateway/tollgate/internal/jsonscan"
)

// Members are what a request says of itself, whether its body is JSON or a form. Absent members are not ok; the error of one
// that is of another kind may be shown to the client.
type Members interface {
	String(path ...string) (s string, ok bool, err error)
	Int(path ...string) (n int64, ok bool, err error)
}

// Uploads are the files of a request.
type Uploads struct {
	Count   int64
	Seconds int64 // how long their audio is at most, begun seconds as whole ones
}

const (
	maxImages = 1 << 10 // pictures of one request; providers stop at ten
	maxSide   = 1 << 16 // pixels of a picture's side
	// A picture of 1024 × 1536 pixels takes 6,240 tokens at the best quality, one of the middle a quarter of that, and one
	// that is shown before it is finished 100 (OpenAI's guide to image generation).
	imageTokens     = 6_240
	imagePixels     = 1_024 * 1_536
	partialTokens   = 100
	defaultFrames   = 9     // of a GIF whose request names no frame_count
	tokensPerUpload = 6_240 // a picture to edit, read in high fidelity: OpenAI's guide has up to 4,160 + 2,080 of each

	speechTokensPerCharacter  = 2   // OpenAI's spoken minute of about 900 characters is 1,250 tokens
	leastSpeechTokens         = 128 // of a few characters
	audioTokensPerSecond      = 32  // as in the estimate of prompts
	transcriptTokensPerSecond = 8   // people say up to 4 words in a second

	// A search unit of Cohere's is a query with up to 100 documents, and one of more than 500 tokens counts as several.
	documentsPerSearch = 100
	tokensPerDocument  = 500
)

// mediaDemand reads the demand of a request for pictures, speech, transcripts or rankings: what is charged by the piece, and
// the tokens that those models take which are charged by them.
func mediaDemand(route string, m Members, input int64, files Uploads) (Demand, error) {
	d := Demand{Input: input, Outputs: 1, Version: jsonedit.EstimatorVersion}
	switch route {
	case RouteImages, RouteImageEdits, RouteImageVariations:
		return d, d.pictures(m, files.Count)
	case RouteSpeech:
		return d, d.speech(m)
	default: // transcriptions and translations
		d.Audio = true
		d.Counted[UnitSecond] = max(files.Seconds, 1)
		d.Input += d.Counted[UnitSecond] * audioTokensPerSecond
		d.Declared = d.Counted[UnitSecond]*transcriptTokensPerSecond + leastExpectedOutput
		return d, nil
	}
}

func (d *Demand) pictures(m Members, given int64) error {
	n, ok, err := m.Int("n")
	if err != nil {
		return unreadable(err)
	}
	if !ok {
		n = 1
	}
	if n < 1 || n > maxImages {
		return invalid("n", "asks for too many pictures, or for none")
	}
	partial, _, err := m.Int("partial_images")
	if err != nil {
		return unreadable(err)
	}
	if partial < 0 || partial > maxImages {
		return invalid("partial_images", "asks for too many pictures")
	}
	frames, err := frames(m)
	if err != nil {
		return err
	}
	quality, _, err := m.String("quality")
	if err != nil {
		return unreadable(err)
	}
	size, _, err := m.String("size")
	if err != nil {
		return unreadable(err)
	}
	d.Counted[UnitImage], d.Outputs = n, n
	d.Declared = tokensOfPicture(quality, size)*frames + partial*partialTokens
	d.Images = given > 0
	d.Input += given * tokensPerUpload
	d.Tier = ImageTier(quality, size)
	d.AnyTier = open(quality) || open(size)
	return nil
}

// frames is of how many pictures each one is made: those that move have more than one.
func frames(m Members) (int64, error) {
	format, _, err := m.String("output_format")
	if err != nil {
		return 0, unreadable(err)
	}
	n, ok, err := m.Int("frame_count")
	switch {
	case err != nil:
		return 0, unreadable(err)
	case ok && (n < 1 || n > maxImages):
		return 0, invalid("frame_count", "asks for too many pictures, or for none")
	case ok:
		return n, nil
	case format == "gif":
		return defaultFrames, nil
	}
	return 1, nil
}

// open reports whether a choice is left to the provider.
func open(choice string) bool { return choice == "" || choice == "auto" }

// ImageTier names the tier of a price that pictures of a quality and a size have: hd/1024x1792, hd, 512x512. What is left to
// the provider has no name. A price that lacks the tier of a quality in this size asks that of the quality in any size, and
// without that the ordinary one. Service tiers stand in the same prices, and no quality or size leads to one.
func ImageTier(quality, size string) string {
	var parts []string
	if !open(quality) && len(quality) <= maxTierPart && !isSize(quality) && !isService(quality) {
		parts = append(parts, quality)
	}
	if isSize(size) && len(size) <= maxTierPart {
		parts = append(parts, size)
	}
	return strings.Join(parts, "/")
}

// isSize reports whether a text is a size such as 1024x1792.
func isSize(s string) bool {
	wide, high, ok := strings.Cut(s, "x")
	return ok && wide != "" && high != "" && strings.Trim(wide+high, "0123456789") == ""
}

// isService reports whether a text names, or begins with the name of, a service tier or a place of inference.
func isService(s string) bool {
	s, _, _ = strings.Cut(s, "/")
	switch strings.ToLower(s) {
	case ServiceTierBatch, ServiceTierFlex, ServiceTierPriority, ServiceTierFast, InferenceUS, "scale":
		return true
	}
	return false
}

const maxTierPart = 31 // bytes of a quality or a size

// tokensOfPicture is how many tokens a picture takes at most.
func tokensOfPicture(quality, size string) int64 {
	tokens := int64(imageTokens)
	wide, high, ok := strings.Cut(size, "x")
	w, err := strconv.ParseInt(wide, 10, 64)
	h, err2 := strconv.ParseInt(high, 10, 64)
	if ok && err == nil && err2 == nil && w > 0 && h > 0 && w <= maxSide && h <= maxSide {
		tokens = max(tokens, (w*h*imageTokens+imagePixels-1)/imagePixels)
	}
	switch quality {
	case "low":
		return tokens/15 + 1
	case "medium":
		return tokens/3 + 1
	}
	return tokens
}

func (d *Demand) speech(m Members) error {
	text, _, err := m.String("input")
	if err != nil {
		return unreadable(err)
	}
	if text == "" {
		return invalid("input", "must be a text to speak")
	}
	d.Counted[UnitCharacter] = int64(utf8.RuneCountInString(text))
	d.Declared = d.Counted[UnitCharacter]*speechTokensPerCharacter + leastSpeechTokens
	return nil
}

// rankingDemand reads the demand of a request to rank documents. Models that charge for tokens read the query anew with each
// document.
func rankingDemand(body *jsonedit.Document, input int64) (Demand, error) {
	d := Demand{Input: input, NoOutput: true, Version: jsonedit.EstimatorVersion}
	query, _, err := body.String("query")
	if err != nil {
		return Demand{}, unreadable(err)
	}
	documents := int64(0)
	if raw, ok := body.Get("documents"); ok && raw[0] == '[' {
		var s jsonscan.Scanner
		s.Reset(raw)
		for s.Enter('['); s.Next(); s.Skip() {
			documents++
		}
	}
	d.Input += (int64(len(query)) + bytesPerToken - 1) / bytesPerToken * max(documents-1, 0)
	d.Counted[UnitSearch] = max((documents+input/tokensPerDocument+documentsPerSearch-1)/documentsPerSearch, 1)
	return d, nil
}

// DemandOfForm reads the demand of a request whose body is a form, as DemandOf does of JSON. Routes that take no form refuse
// it with CodeInvalidRequest.
func DemandOfForm(route string, form *formdata.Form) (Demand, error) {
	sounds := route == RouteTranscriptions || route == RouteTranslations
	if !sounds && route != RouteImageEdits && route != RouteImageVariations {
		return Demand{}, &Error{Code: CodeInvalidRequest, Public: "The route takes JSON, no form."}
	}
	var files Uploads
	for i, p := range form.Parts() {
		if !p.IsFile {
			continue
		}
		files.Count++
		if sounds {
			files.Seconds += audiolen.Seconds(form.File(&form.Parts()[i]), p.Size())
		}
	}
	prompt, _, err := form.String("prompt")
	if err != nil {
		return Demand{}, unreadable(err)
	}
	return mediaDemand(route, form, (int64(len(prompt))+bytesPerToken-1)/bytesPerToken, files)
}

// byPiece reports whether t's price, in all of its tiers, is for what the request asks by the piece.
func (d *Demand) byPiece(t *Target) bool {
	if t.Price == nil || len(t.Price.Tiers) == 0 {
		return false
	}
	for i := range t.Price.Tiers {
		if !d.Counted.pricedBy(&t.Price.Tiers[i].Prices) {
			return false
		}
	}
	return true
}

// pricedBy reports whether a unit that was counted has a price.
func (q *Quantities) pricedBy(p *UnitPrices) bool {
	for u := range q {
		if q[u] > 0 && p[u] > 0 {
			return true
		}
	}
	return false
}

// units are what the tokens of the estimate are counted in: those that the route's prompts and answers are mostly made of.
func (d *Demand) units() (input, output Unit) {
	switch {
	case d.Counted[UnitImage] > 0 && d.Images:
		return UnitInputImage, UnitOutputImage
	case d.Counted[UnitImage] > 0:
		return UnitInput, UnitOutputImage
	case d.Counted[UnitCharacter] > 0:
		return UnitInput, UnitOutputAudio
	case d.Counted[UnitSecond] > 0:
		return UnitInputAudio, UnitOutput
	}
	return UnitInput, UnitOutput
}

// picturesIn counts the pictures that a JSON body sends along to be edited.
func picturesIn(body *jsonedit.Document) int64 {
	count := int64(0)
	for _, name := range []string{"image", "images", "mask"} {
		raw, ok := body.Get(name)
		switch {
		case !ok || raw[0] == 'n':
		case raw[0] != '[':
			count++
		default:
			var s jsonscan.Scanner
			s.Reset(raw)
			for s.Enter('['); s.Next(); s.Skip() {
				count++
			}
		}
	}
	return count
}
