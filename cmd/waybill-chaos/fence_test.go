package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waybill-go/waybill/internal/chaos"
)

// A build whose claim doesn't look whether its member is alive, and whose settlement doesn't
// look whether its claim is, does wrong where processes are stopped or their database is silent
// for longer than a lease: a run has to find it. Each run takes two minutes, which is why it
// needs WAYBILL_LONG.
func TestRun_C_95_FindsABuildWithoutTheFence(t *testing.T) {
	if os.Getenv("WAYBILL_LONG") == "" {
		return
	}
	postgres, kafka := servers(t)
	program := withoutFence(t)
	const most = 3
	for seed := 4; ; seed++ {
		require.Less(t, seed, 4+most, "%d runs have found nothing", most)
		var out, news bytes.Buffer
		cmd := exec.CommandContext(t.Context(), program, "--postgres", postgres, "--kafka", kafka, "--seed", fmt.Sprint(seed),
			"--faults", "stop,silence-postgres", "--duration", "120s", "--json", "--schema", fmt.Sprintf("waybill_chaos_fence_%d", seed), "--dir", t.TempDir())
		cmd.Stdout, cmd.Stderr = &out, &news
		err := cmd.Run()
		if err == nil {
			continue
		}
		failed, ok := errors.AsType[*exec.ExitError](err)
		require.True(t, ok && failed.ExitCode() == exitFound, "%v\n%s", err, news.String())
		var result chaos.Result
		require.NoError(t, json.Unmarshal(out.Bytes(), &result))
		require.NotEmpty(t, result.Violations)
		for _, v := range result.Violations {
			t.Logf("seed %d: %s", seed, v.What)
		}
		remove(t, postgres, kafka, fmt.Sprintf("waybill_chaos_fence_%d", seed))
		return
	}
}

// withoutFence builds this program with statements that don't ask for the fence.
func withoutFence(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	statements, err := filepath.Abs("../../internal/outboxdb/sql/postgres")
	require.NoError(t, err)
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	for name, change := range map[string][2]string{
		"claim.sql": {
			"SELECT m.member, $2::bigint, $3::bigint[] FROM outbox_members AS m\nWHERE m.member = $1::bigint AND m.until > 'epoch' AND EXISTS (SELECT FROM outbox_uncrashed AS u WHERE u.member = m.member) FOR NO KEY UPDATE OF m",
			"SELECT $1::bigint, $2::bigint, $3::bigint[]",
		},
		"settle_published.sql": {"FROM token CROSS JOIN unnest", "FROM unnest"},
	} {
		path := filepath.Join(statements, name)
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, 1, strings.Count(string(text), change[0]), "%s is not what this test knows", path)
		overlay.Replace[path] = filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(overlay.Replace[path], []byte(strings.Replace(string(text), change[0], change[1], 1)), 0o600))
	}
	text, err := json.Marshal(overlay)
	require.NoError(t, err)
	list, program := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "waybill-chaos")
	require.NoError(t, os.WriteFile(list, text, 0o600))
	said, err := exec.CommandContext(t.Context(), "go", "build", "-overlay", list, "-o", program, ".").CombinedOutput()
	require.NoError(t, err, "%s", said)
	return program
}
