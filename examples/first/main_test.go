package main

import "os"

// The program that the README shows prints what it says there.
func Example() {
	dir := must(os.MkdirTemp("", "first"))
	defer func() { must(0, os.RemoveAll(dir)) }()
	must(0, os.Chdir(dir))
	main()
	// Output: added: read the guarantees
}
