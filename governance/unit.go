package governance

import "fmt"

// unitNames are the units as the contract's answers name them, in the order of their numbers.
func unitNames() [UnitCount]string {
	return [UnitCount]string{
		"input", "cache_read", "cache_write_5m", "cache_write_1h", "input_audio", "input_image",
		"output", "reasoning", "output_audio", "output_image", "image", "request", "search",
		"character", "second",
	}
}

// String is the unit's name in answers, such as cache_read.
func (u Unit) String() string {
	if u >= UnitCount {
		return fmt.Sprintf("unit(%d)", uint8(u))
	}
	return unitNames()[u]
}

// ParseUnit finds a unit by its name. False: there is none of that name.
func ParseUnit(name string) (Unit, bool) {
	for u, n := range unitNames() {
		if n == name {
			return Unit(u), true
		}
	}
	return 0, false
}
