package locktest_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/tool/layout"
)

// What the snippets of docs/integrations.md may use, under the names that the page gives it.
const (
	imports = `"context"; "database/sql"; "io/fs"; "log/slog"; "time"
		"github.com/caddyserver/certmagic"; "github.com/go-co-op/gocron/v2"; "github.com/pressly/goose/v3"; "github.com/robfig/cron/v3"
		"github.com/tus/tusd/v2/pkg/filestore"; "github.com/tus/tusd/v2/pkg/handler"; clientv3 "go.etcd.io/etcd/client/v3"
		"github.com/etcdlock/etcdlock"; "github.com/etcdlock/etcdlock/integrations/certmagiclock"; "github.com/etcdlock/etcdlock/integrations/cronlock"
		"github.com/etcdlock/etcdlock/integrations/gocronlock"; "github.com/etcdlock/etcdlock/integrations/gooselock"; "github.com/etcdlock/etcdlock/integrations/tuslock"`
	parameters = `ctx context.Context, client *clientv3.Client, locks *etcdlock.Client, store filestore.FileStore, report func(context.Context) error,
		storage certmagic.Storage, dialect goose.Dialect, db *sql.DB, migrations fs.FS, provider *goose.Provider, c *cron.Cron, job cron.Job`
)

// The blocks of Go in docs/integrations.md compile, but for the recipes: their libraries are no dependencies of this module.
func TestDocs_SnippetsCompile(t *testing.T) {
	const page = "docs/integrations.md"
	text, err := os.ReadFile("../../../" + page)
	require.NoError(t, err)
	packages, _, ok := strings.Cut(string(text), "\n## Recipes\n")
	require.True(t, ok)
	snippets := layout.Blocks(page, packages)
	require.Len(t, snippets, 8)
	wrong, err := layout.Compile("../..", imports, parameters, snippets)
	require.NoError(t, err)
	require.Empty(t, wrong)
}
