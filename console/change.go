package console

import (
	"errors"
	"reflect"

	"github.com/danielgtaylor/huma/v2"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

var errNull = errors.New("must not be null")

// change is a member of a PATCH body that has a value as soon as it is there.
type change[T any] struct {
	given bool
	value T
}

// UnmarshalJSONFrom notes that the member was there.
func (c *change[T]) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	if d.PeekKind() == 'n' {
		if err := d.SkipValue(); err != nil {
			return err
		}
		return errNull
	}
	c.given = true
	return json.UnmarshalDecode(d, &c.value)
}

// Schema is that of the value.
func (c change[T]) Schema(r huma.Registry) *huma.Schema {
	s := *r.Schema(reflect.TypeFor[T](), true, "")
	s.Nullable = false
	return &s
}

// to sets *field if the member was there.
func (c change[T]) to(field *T) {
	if c.given {
		*field = c.value
	}
}

// clearable is a member of a PATCH body that null empties: absent, null or a value (null is unlimited for amounts).
type clearable[T any] struct {
	given bool
	null  bool
	value T
}

// UnmarshalJSONFrom notes that the member was there and whether it was null.
func (c *clearable[T]) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	c.given = true
	if d.PeekKind() == 'n' {
		c.null = true
		return d.SkipValue()
	}
	return json.UnmarshalDecode(d, &c.value)
}

// Schema is that of the value, or null.
func (c clearable[T]) Schema(r huma.Registry) *huma.Schema {
	s := *r.Schema(reflect.TypeFor[T](), true, "")
	s.Nullable = true
	return &s
}

// to sets *field if the member was there; null sets the zero value.
func (c clearable[T]) to(field *T) {
	if c.given {
		*field = c.value
	}
}
