//go:build !linux

package liveness

func machine(string) string { return "" }

func state(int, uint64) State { return Unknown }

func started(int) (ticks uint64, ok bool) { return 0, false }
