// Package jsondepth looks at how deep JSON is nested, before anybody works on it: what
// reads or shows it may need time or memory by the square of that.
package jsondepth

// Limit is as deep as a message's body may be.
const Limit = 128

// Exceeds says whether objects and arrays are nested deeper than limit. It reads text
// once, and need not be given JSON.
func Exceeds(text []byte, limit int) bool {
	depth := 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '{', '[':
			if depth++; depth > limit {
				return true
			}
		case '}', ']':
			depth--
		case '"':
			for i++; i < len(text) && text[i] != '"'; i++ {
				if text[i] == '\\' {
					i++
				}
			}
		}
	}
	return false
}
