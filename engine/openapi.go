package engine

import (
	_ "embed"
	"net/http"
)

// openAPIDocument describes what the engine serves, in OpenAPI 3.1.
//
//go:embed openapi.json
var openAPIDocument []byte

func openAPI(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	secure(w.Header())
	_, _ = w.Write(openAPIDocument)
}
