package docs

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/waybill-go/waybill/engine/config"
	"github.com/waybill-go/waybill/internal/dbtest"
	"github.com/waybill-go/waybill/internal/kafkatest"
	"github.com/waybill-go/waybill/internal/porttest"
)

// deploys follows the second part, on the servers of the tests.
func (r *reader) deploys() {
	t := r.t
	commands, files, programs := blocks(t, second, "sh"), blocks(t, second, "yaml"), blocks(t, second, "go")
	require.Len(t, commands, 4, "the run, the use, the files, their names")
	require.Len(t, files, 3, "the configuration, Prometheus, the configuration where it is deployed")
	require.Len(t, programs, 1)
	_, postgres := dbtest.Postgres(t)
	prefix := fmt.Sprintf("tutorial-%d.", time.Now().UnixNano())
	kafka, err := kgo.NewClient(kgo.SeedBrokers(dbtest.Environment(t, "WAYBILL_KAFKA")))
	require.NoError(t, err)
	t.Cleanup(kafka.Close)
	t.Cleanup(func() { kafkatest.DeleteTopics(t, kafka, prefix) })
	r.env = append(r.env, "WAYBILL_PROVIDERS_DEFAULT_DSN="+postgres.DSN, "WAYBILL_PROVIDERS_DEFAULT_SCHEMA="+postgres.Schema,
		"WAYBILL_BROKERS_DEFAULT_ADDRESSES=["+dbtest.Environment(t, "WAYBILL_KAFKA")+"]", "WAYBILL_BROKERS_DEFAULT_TOPIC_PREFIX="+prefix)
	here := strings.NewReplacer("127.0.0.1:9000", porttest.Address(), "127.0.0.1:8080", porttest.Address(), "./todo serve &", "./todo serve 2>log &", "--retry 30", "--retry 180")
	log := filepath.Join(r.dir, "log")
	t.Cleanup(func() {
		if t.Failed() {
			text, _ := os.ReadFile(log)
			t.Logf("the service wrote:\n%s", text)
		}
	})
	r.writes("waybill.yaml", here.Replace(files[0]))
	r.writes("main.go", here.Replace(programs[0]))

	printed := r.types(here.Replace(commands[0]+commands[1]) + "until grep ' done task=' log; do sleep 0.05; done\nkill $!\nwait $!\n")
	require.Contains(t, printed, `"status": "ready"`)
	require.Contains(t, printed, "\n  ok        connection: PostgreSQL ")
	require.Contains(t, printed, "\n  # messages that are consumed\n")
	require.Contains(t, printed, "it has one replica")
	require.Regexp(t, stats(0, 2)+"$", r.types("go tool waybill outbox stats"))

	r.writes("prometheus.yaml", files[1])
	r.types(commands[2])
	rules := decode[struct {
		Files []string `yaml:"rule_files"`
	}](t, filepath.Join(r.dir, "prometheus.yaml"))
	require.Len(t, rules.Files, 1)
	require.FileExists(t, filepath.Join(r.dir, rules.Files[0]))
	require.FileExists(t, filepath.Join(r.dir, "deploy/grafana/waybill.json"))
	r.types(commands[3])
	r.writes("deploy/kubernetes/waybill.yaml", files[2])
	f, err := config.Parse(filepath.Join(r.dir, "deploy/kubernetes/waybill.yaml"))
	require.NoError(t, err)
	require.Equal(t, "todo", f.Domain)
	require.Empty(t, r.types("grep -ri ordering deploy/kubernetes deploy/kubernetes-backlog deploy/systemd || true"), "the example's name")
	require.Contains(t, r.types("cat deploy/kubernetes/deployment.yaml"), "image: todo\n")
}
