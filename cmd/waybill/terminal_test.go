package main

import (
	"os"
	"os/user"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// N11: a container has no $USER, and often no name for its uid.
func TestActor_N11_IsKnownWithoutUSER(t *testing.T) {
	t.Setenv("USER", "ada")
	require.Equal(t, "ada", deed{}.actor())

	t.Setenv("USER", "")
	require.NotEmpty(t, deed{}.actor())
	require.NoError(t, deed{}.check())
	require.Equal(t, "grace", processUser(func() (*user.User, error) { return &user.User{Username: "grace"}, nil }))
	host, err := os.Hostname()
	require.NoError(t, err)
	require.Equal(t, strconv.Itoa(os.Getuid())+"@"+host, processUser(func() (*user.User, error) { return nil, user.UnknownUserIdError(os.Getuid()) }))

	// What was given is not replaced: an empty one may be a variable that isn't set.
	nobody := ""
	require.Error(t, deed{onRecord: onRecord{Actor: &nobody}}.check())

	lines := "ann\nbob"
	require.ErrorContains(t, deed{onRecord: onRecord{Actor: &lines}}.check(), `--actor, or else $USER, is "ann\nbob": give a name`)
	require.NoError(t, deed{DryRun: true, onRecord: onRecord{Actor: &lines}}.check())
}
