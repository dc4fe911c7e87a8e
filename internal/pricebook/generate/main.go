// Command generate makes the embedded price book from copies of two public collections: prices from genai-prices, output
// maxima and further names of models from models.dev.
package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"flag"
	"fmt"
	"os"

	"github.com/tollgate-gateway/tollgate/internal/pricebook"
)

func main() {
	prices := flag.String("prices", "", "data.json of genai-prices")
	models := flag.String("models", "", "api.json of models.dev")
	date := flag.String("date", "", "date of the prices, YYYY-MM-DD")
	out := flag.String("out", "", "file to write, gzipped JSON")
	flag.Parse()
	if err := run(*prices, *models, *date, *out); err != nil {
		fmt.Fprintln(os.Stderr, "generate price book:", err)
		os.Exit(1)
	}
}

func run(prices, models, date, out string) error {
	priceData, err := os.ReadFile(prices)
	if err != nil {
		return err
	}
	modelData, err := os.ReadFile(models)
	if err != nil {
		return err
	}
	items, err := convert(priceData, modelData)
	if err != nil {
		return err
	}
	text, err := json.Marshal(pricebook.File{Date: date, Items: items})
	if err != nil {
		return err
	}
	var packed bytes.Buffer
	w, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return err
	}
	if _, err := w.Write(text); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return os.WriteFile(out, packed.Bytes(), 0o644) //nolint:gosec // part of the sources
}
