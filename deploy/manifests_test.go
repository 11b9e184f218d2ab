package deploy_test

import (
	"bytes"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
)

// The part of Compose's format that the file uses. Decoding is strict: a field that is not
// here, or is misspelled, is an error.
type (
	service struct {
		Image       string                                `yaml:"image"`
		Command     []string                              `yaml:"command"`
		User        string                                `yaml:"user"`
		Environment map[string]string                     `yaml:"environment"`
		Volumes     []string                              `yaml:"volumes"`
		ReadOnly    bool                                  `yaml:"read_only"`
		Tmpfs       []string                              `yaml:"tmpfs"`
		CapDrop     []string                              `yaml:"cap_drop"`
		Security    []string                              `yaml:"security_opt"`
		Ulimits     map[string]int                        `yaml:"ulimits"`
		Grace       string                                `yaml:"stop_grace_period"`
		Restart     string                                `yaml:"restart"`
		Network     string                                `yaml:"network_mode"`
		Health      map[string]any                        `yaml:"healthcheck"`
		Depends     map[string]struct{ Condition string } `yaml:"depends_on"`
	}
	compose struct {
		Name     string              `yaml:"name"`
		Services map[string]service  `yaml:"services"`
		Volumes  map[string]struct{} `yaml:"volumes"`
	}
)

func decode(t *testing.T, path string, into any) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	d := yaml.NewDecoder(f)
	d.KnownFields(true)
	if err := d.Decode(into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// unmarshal reads a manifest as an API server does that validates fields strictly: a field
// that the type does not have is an error.
func unmarshal(manifest []byte, into any) error {
	var document any
	if err := yaml.Unmarshal(manifest, &document); err != nil {
		return err
	}
	b, err := json.Marshal(document)
	if err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	return d.Decode(into)
}

func TestKubernetes(t *testing.T) {
	var p core.Pod
	var d apps.DaemonSet
	for path, into := range map[string]any{"kubernetes/sidecar.yaml": &p, "kubernetes/daemonset.yaml": &d} {
		b, err := os.ReadFile(path)
		if err == nil {
			err = unmarshal(b, into)
		}
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
	}
	if p.APIVersion != "v1" || p.Kind != "Pod" || d.APIVersion != "apps/v1" || d.Kind != "DaemonSet" {
		t.Errorf("kinds: %s %s, %s %s", p.APIVersion, p.Kind, d.APIVersion, d.Kind)
	}
	for k, v := range d.Spec.Selector.MatchLabels {
		if d.Spec.Template.Labels[k] != v {
			t.Errorf("the selector %s=%s selects no pod of the template", k, v)
		}
	}
	is := func(b *bool) bool { return b != nil && *b }
	isNot := func(b *bool) bool { return b != nil && !*b }
	for name, spec := range map[string]core.PodSpec{"pod": p.Spec, "daemonset": d.Spec.Template.Spec} {
		s := spec.SecurityContext
		if s == nil || !is(s.RunAsNonRoot) || s.RunAsUser == nil || *s.RunAsUser == 0 || s.SeccompProfile == nil || s.SeccompProfile.Type != core.SeccompProfileTypeRuntimeDefault {
			t.Errorf("%s: runs as root, or without a profile: %+v", name, s)
		}
		if grace := spec.TerminationGracePeriodSeconds; !isNot(spec.AutomountServiceAccountToken) || grace == nil || *grace <= 30 {
			t.Errorf("%s: has a token, or ends before calls do", name)
		}
		if spec.HostNetwork || spec.HostPID || spec.HostIPC {
			t.Errorf("%s: shares namespaces of the node", name)
		}
		var volumes []string
		for _, v := range spec.Volumes {
			if source := v.VolumeSource; (source.EmptyDir == nil) == (source.HostPath == nil) {
				t.Errorf("%s: volume %s has not one source", name, v.Name)
			}
			volumes = append(volumes, v.Name)
		}
		for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
			if s := c.SecurityContext; s == nil || !isNot(s.AllowPrivilegeEscalation) || is(s.Privileged) || !is(s.ReadOnlyRootFilesystem) || !slices.Equal(s.Capabilities.Drop, []core.Capability{"ALL"}) || s.Capabilities.Add != nil {
				t.Errorf("%s: container %s has more than it needs: %+v", name, c.Name, s)
			}
			server := c.Image == "toold-server"
			if !server && c.EnvFrom != nil {
				t.Errorf("%s: container %s, which calls, has secrets", name, c.Name)
			}
			for _, m := range c.VolumeMounts {
				if !slices.Contains(volumes, m.Name) {
					t.Errorf("%s: container %s mounts %s, which is no volume", name, c.Name, m.Name)
				}
				if m.Name == "tools" && !m.ReadOnly || m.Name == "sockets" && !server && !m.ReadOnly {
					t.Errorf("%s: container %s can write to %s", name, c.Name, m.Name)
				}
				if strings.HasSuffix(m.MountPath, ".sock") {
					t.Errorf("%s: container %s mounts a socket, not its folder", name, c.Name)
				}
			}
		}
	}
}

// A field that Kubernetes does not have is found, wherever it is.
func TestKubernetesFields(t *testing.T) {
	b, err := os.ReadFile("kubernetes/sidecar.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, field := range []string{"runAsNonRoot:", "allowPrivilegeEscalation:", "mountPath:", "failureThreshold:", "terminationGracePeriodSeconds:", "labels:"} {
		changed := bytes.Replace(b, []byte(field), []byte("x"+field), 1)
		if bytes.Equal(changed, b) {
			t.Fatalf("there is no %s", field)
		}
		if unmarshal(changed, new(core.Pod)) == nil {
			t.Errorf("x%s is taken", field)
		}
	}
}

func TestCompose(t *testing.T) {
	var c compose
	decode(t, "container/compose.yaml", &c)
	for name, s := range c.Services {
		if !s.ReadOnly || s.User == "" || strings.HasPrefix(s.User, "0") || !slices.Equal(s.CapDrop, []string{"ALL"}) || !slices.Contains(s.Security, "no-new-privileges:true") {
			t.Errorf("%s has more than it needs: %+v", name, s)
		}
		if s.Ulimits["nofile"] < 1024 || s.Ulimits["nproc"] < 1024 {
			t.Errorf("%s has limits of its engine: %v", name, s.Ulimits)
		}
		if !strings.Contains(s.Environment["INSTANCE_ID"], "INSTANCE_ID") || !strings.Contains(s.Environment["TOOL_SOCKET"], "${INSTANCE_ID") {
			t.Errorf("%s does not follow INSTANCE_ID: %v", name, s.Environment)
		}
		for _, v := range s.Volumes {
			tools := strings.Contains(v, "/tools/") // of either
			sockets := strings.HasPrefix(v, "sockets:") && name == "client"
			if (tools || sockets) && !strings.HasSuffix(v, ":ro") {
				t.Errorf("%s can write to %s", name, v)
			}
		}
	}
	client := c.Services["client"]
	if client.Network != "none" || !slices.Contains(client.Volumes, "sockets:/run/toold/sockets:ro") {
		t.Errorf("the client: network %q, volumes %v", client.Network, client.Volumes)
	}
}
