package main

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/waybill-go/waybill/internal/chaos"
)

// The processes of a run are this program.
func TestMain(m *testing.M) {
	if os.Getenv(chaos.NodeVar) != "" {
		main()
	}
	os.Exit(m.Run())
}

// servers are those that the tests run on.
func servers(t *testing.T) (postgres, kafka string) {
	t.Helper()
	postgres, kafka = os.Getenv("WAYBILL_POSTGRES"), os.Getenv("WAYBILL_KAFKA")
	require.True(t, postgres != "" && kafka != "", "WAYBILL_POSTGRES and WAYBILL_KAFKA name the servers: use scripts/test")
	return postgres, kafka
}

func call(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, news bytes.Buffer
	code = run(t.Context(), args, &out, &news)
	return code, out.String(), news.String()
}

// remove takes away what a run has left that has found something.
func remove(t *testing.T, postgres, kafka, schema string) {
	t.Helper()
	db, err := pgx.Connect(t.Context(), postgres)
	require.NoError(t, err)
	defer func() { _ = db.Close(t.Context()) }()
	_, err = db.Exec(t.Context(), "DROP SCHEMA "+schema+" CASCADE; DROP SCHEMA "+schema+"_consumers CASCADE")
	require.NoError(t, err)
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(kafka, ",")...))
	require.NoError(t, err)
	defer client.Close()
	admin := kadm.NewClient(client)
	topics, err := chaos.Topics(t.Context(), admin, schema+".")
	require.NoError(t, err)
	_, err = admin.DeleteTopics(t.Context(), topics...)
	require.NoError(t, err)
}

// A short run on sound code finds nothing, and leaves nothing on the servers; a long one,
// with a clock that is off, too.
func TestRun_FindsNothingAndLeavesNothing(t *testing.T) {
	url, kafka := servers(t)
	const schema = "waybill_chaos_test"
	args := []string{"--schema", schema, "--seed", "7", "--json", "--duration", "4s", "--faults", "kill,stop,cut-postgres,cut-kafka"}
	if os.Getenv("WAYBILL_LONG") != "" {
		args = args[:5]
		args = append(args, "--duration", "3m")
	}
	code, out, news := call(t, args...)
	require.Zero(t, code, "%s%s", out, news)
	var result chaos.Result
	require.NoError(t, json.Unmarshal([]byte(out), &result))
	require.Empty(t, result.Violations)
	require.Positive(t, result.Events)
	require.Positive(t, result.Effects)
	require.NotEmpty(t, result.Faults)
	require.NotEmpty(t, result.Off, "those without a command")
	require.Contains(t, news, "faults on: kill")

	db, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer func() { _ = db.Close(t.Context()) }()
	var left int
	require.NoError(t, db.QueryRow(t.Context(), "SELECT count(*) FROM pg_namespace WHERE nspname LIKE $1", schema+"%").Scan(&left))
	require.Zero(t, left)
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(kafka, ",")...))
	require.NoError(t, err)
	defer client.Close()
	topics, err := chaos.Topics(t.Context(), kadm.NewClient(client), schema+".")
	require.NoError(t, err)
	require.Empty(t, topics)
}

func TestRun_SaysWhatIsWrongAndDoesNothing(t *testing.T) {
	url, _ := servers(t)
	db, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer func() { _ = db.Close(t.Context()) }()
	_, err = db.Exec(t.Context(), "CREATE SCHEMA waybill_chaos_full; CREATE TABLE waybill_chaos_full.somebodys (n int)")
	require.NoError(t, err)
	defer func() { _, _ = db.Exec(t.Context(), "DROP SCHEMA waybill_chaos_full CASCADE") }()
	for name, c := range map[string]struct {
		args []string
		says string
	}{
		"a fault that there isn't":  {[]string{"--faults", "flood"}, `there is no fault "flood"`},
		"a fault without a command": {[]string{"--faults", "restart-kafka"}, "give a command that kills and starts it: --restart-kafka"},
		"somebody's schema":         {[]string{"--schema", "waybill_chaos_full"}, "waybill_chaos_full"},
		"no PostgreSQL":             {[]string{"--postgres", "postgres://nobody@127.0.0.1:1/none"}, "127.0.0.1"},
		"no Kafka":                  {[]string{"--kafka", "127.0.0.1:1"}, "127.0.0.1:1"},
		"an unknown flag":           {[]string{"--quickly"}, "--help"},
	} {
		t.Run(name, func(t *testing.T) {
			code, out, news := call(t, append(c.args, "--duration", "1s")...)
			require.Equal(t, exitWrong, code)
			require.Empty(t, out)
			require.Contains(t, news, c.says)
		})
	}
	var there bool
	require.NoError(t, db.QueryRow(t.Context(), "SELECT to_regclass('waybill_chaos_full.somebodys') IS NOT NULL").Scan(&there))
	require.True(t, there)
}
