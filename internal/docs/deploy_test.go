package docs

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/waybill-go/waybill/engine/config"
)

const manifests = "deploy/kubernetes"

// load reads the only document of a YAML file of the repository.
func load[T any](t *testing.T, path string) T {
	t.Helper()
	return decode[T](t, filepath.Join(root, path))
}

func decode[T any](t *testing.T, path string) (v T) {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	d := yaml.NewDecoder(bytes.NewReader(text))
	require.NoError(t, d.Decode(&v), path)
	require.ErrorIs(t, d.Decode(new(any)), io.EOF, "%s: one document", path)
	return v
}

type labels map[string]string

// object is what the test reads of any of the manifests.
type object struct {
	Kind     string
	Metadata struct {
		Name   string
		Labels labels
	}
	Spec struct {
		Selector struct {
			MatchLabels labels `yaml:"matchLabels"`
		}
		Template struct {
			Metadata struct{ Labels labels }
			Spec     pod
		}
		ScaleTargetRef struct{ Kind, Name string } `yaml:"scaleTargetRef"`
	}
}

type pod struct {
	Grace           int `yaml:"terminationGracePeriodSeconds"`
	SecurityContext struct {
		RunAsNonRoot bool `yaml:"runAsNonRoot"`
		RunAsUser    int  `yaml:"runAsUser"`
	} `yaml:"securityContext"`
	Containers []struct {
		Name, Image     string
		Args            []string
		Env             []struct{ Name string }
		Ports           []struct{ Name string }
		StartupProbe    probe                              `yaml:"startupProbe"`
		LivenessProbe   probe                              `yaml:"livenessProbe"`
		ReadinessProbe  probe                              `yaml:"readinessProbe"`
		VolumeMounts    []struct{ Name, MountPath string } `yaml:"volumeMounts"`
		SecurityContext struct {
			Escalation bool `yaml:"allowPrivilegeEscalation"`
			ReadOnly   bool `yaml:"readOnlyRootFilesystem"`
		} `yaml:"securityContext"`
	}
	Volumes []struct{ Name string }
}

type probe struct {
	HTTPGet struct{ Path, Port string } `yaml:"httpGet"`
}

// The manifests belong together: every file is applied, selectors find pods, probes go to what answers them, and every
// volume and image is there. The configuration is a valid one.
func TestDeploy_ManifestsBelongTogether(t *testing.T) {
	k := load[struct {
		Resources          []string
		ConfigMapGenerator []struct {
			Name  string
			Files []string
		} `yaml:"configMapGenerator"`
		Images []struct{ Name string }
	}](t, manifests+"/kustomization.yaml")
	require.Len(t, k.ConfigMapGenerator, 1)
	require.Equal(t, []string{"waybill.yaml"}, k.ConfigMapGenerator[0].Files)
	paths, err := filepath.Glob(filepath.Join(root, manifests, "*.yaml"))
	require.NoError(t, err)
	require.Len(t, paths, len(k.Resources)+2, "resources, configuration and kustomization")
	f, err := config.Parse(filepath.Join(root, manifests, "waybill.yaml"))
	require.NoError(t, err)
	_, port, ok := strings.Cut(f.Server.Addr, ":")
	require.True(t, ok)
	require.Equal(t, "9000", port)

	objects := map[string]object{}
	for _, name := range k.Resources {
		o := load[object](t, filepath.Join(manifests, name))
		objects[o.Kind] = o
		for _, c := range o.Spec.Template.Spec.Containers {
			require.Equal(t, k.Images[0].Name, c.Image)
			require.True(t, c.SecurityContext.ReadOnly && !c.SecurityContext.Escalation, "%s: its security context", name)
			require.Equal(t, []string{"--config", "/etc/waybill/waybill.yaml"}, c.Args[:2])
			var mounted, there []string
			for _, m := range c.VolumeMounts {
				mounted = append(mounted, m.Name)
			}
			for _, v := range o.Spec.Template.Spec.Volumes {
				there = append(there, v.Name)
			}
			require.Equal(t, mounted, there)
		}
	}
	backlog := load[object](t, manifests+"-backlog/scaling.yaml")
	require.Equal(t, objects["HorizontalPodAutoscaler"].Metadata, backlog.Metadata, "what it patches")
	d := objects["Deployment"]
	require.Equal(t, d.Spec.Selector.MatchLabels, d.Spec.Template.Metadata.Labels)
	require.Equal(t, d.Spec.Selector.MatchLabels, objects["PodDisruptionBudget"].Spec.Selector.MatchLabels)
	require.Equal(t, d.Metadata.Name, objects["HorizontalPodAutoscaler"].Spec.ScaleTargetRef.Name)
	require.NotEqual(t, d.Spec.Template.Metadata.Labels, objects["Job"].Spec.Template.Metadata.Labels, "the service sends nothing to the job")
	require.Greater(t, d.Spec.Template.Spec.Grace, 30, "engine.Config.StopTimeout")
	require.Len(t, d.Spec.Template.Spec.Containers, 1)
	c := d.Spec.Template.Spec.Containers[0]
	for path, p := range map[string][]probe{"/livez": {c.StartupProbe, c.LivenessProbe}, "/readyz": {c.ReadinessProbe}} {
		for _, p := range p {
			require.Equal(t, path, p.HTTPGet.Path)
			require.Equal(t, c.Ports[0].Name, p.HTTPGet.Port)
		}
	}
	for _, kind := range []string{"Deployment", "Job"} {
		p := objects[kind].Spec.Template.Spec
		require.True(t, p.SecurityContext.RunAsNonRoot && p.SecurityContext.RunAsUser == 65532, "as the Dockerfile's user")
	}
}

// What compose.yaml mounts and builds is there, what it waits for is one of its services, and what it sets are keys of
// the configuration, which Prometheus has the token of.
func TestDeploy_ComposeIsComplete(t *testing.T) {
	type service struct {
		Image, Build yaml.Node
		Environment  map[string]string
		Volumes      []string
		DependsOn    map[string]any `yaml:"depends_on"`
	}
	c := load[struct{ Services map[string]service }](t, "compose.yaml")
	for name, s := range c.Services {
		require.NotEqual(t, s.Image.IsZero(), s.Build.IsZero(), "%s has an image or is built", name)
		for other := range s.DependsOn {
			require.Contains(t, c.Services, other)
		}
		for _, v := range s.Volumes {
			if from, _, _ := strings.Cut(v, ":"); strings.HasPrefix(from, "./") {
				require.FileExists(t, filepath.Join(root, from))
			}
		}
	}
	ordering := c.Services["ordering"].Environment
	for variable, value := range ordering {
		t.Setenv(variable, value)
	}
	f, err := config.Parse(filepath.Join(root, "examples/ordering/waybill.yaml"))
	require.NoError(t, err)
	require.Equal(t, ordering["WAYBILL_SERVER_ADDR"], f.Server.Addr)
	scrape, err := os.ReadFile(filepath.Join(root, "deploy/compose/prometheus.yaml"))
	require.NoError(t, err)
	require.Contains(t, string(scrape), "credentials: "+ordering["WAYBILL_SERVER_TOKEN"]+"}")
}
