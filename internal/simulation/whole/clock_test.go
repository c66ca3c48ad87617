package whole

import (
	"database/sql/driver"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"modernc.org/sqlite"

	"github.com/waybill-go/waybill/internal/dbtime"
)

// init has SQLite go by the bubble's clock, as its own functions of the time ask the machine,
// and by the seed.
//
//nolint:gochecknoinits // functions have to be known before the first connection
func init() {
	sqlite.MustRegisterFunction("strftime", &sqlite.FunctionImpl{NArgs: -1, Scalar: strftime})
	sqlite.MustRegisterFunction("julianday", &sqlite.FunctionImpl{NArgs: -1, Scalar: julianday})
	sqlite.MustRegisterFunction("random", &sqlite.FunctionImpl{NArgs: 0, Scalar: random})
}

const format = "%Y-%m-%dT%H:%M:%fZ"

// instant is a time as SQLite's functions take it: a text, or now, plus seconds. It is
// false for NULL.
func instant(args []driver.Value) (at time.Time, ok bool, err error) {
	for i, arg := range args {
		text, isText := arg.(string)
		switch {
		case arg == nil:
			return at, false, nil
		case !isText:
			return at, false, fmt.Errorf("whole: %v is no time", arg)
		case i == 0 && text == "now":
			at = time.Now().UTC()
		case i == 0:
			if at, err = time.Parse(time.RFC3339Nano, text); err != nil {
				return at, false, err
			}
		default:
			d, err := time.ParseDuration(strings.Replace(text, " seconds", "s", 1))
			if err != nil {
				return at, false, err
			}
			at = at.Add(d)
		}
	}
	return at, true, nil
}

func strftime(_ *sqlite.FunctionContext, args []driver.Value) (driver.Value, error) {
	if args[0] != format {
		return nil, fmt.Errorf("whole: the format %v is not known here", args[0])
	}
	at, ok, err := instant(args[1:])
	if err != nil || !ok {
		return nil, err
	}
	return at.UTC().Format(dbtime.Layout), nil
}

// dice are those of the schedule that runs.
var dice *rand.Rand

func random(*sqlite.FunctionContext, []driver.Value) (driver.Value, error) {
	return int64(dice.Uint64()), nil
}

func julianday(_ *sqlite.FunctionContext, args []driver.Value) (driver.Value, error) {
	at, ok, err := instant(args)
	if err != nil || !ok {
		return nil, err
	}
	return 2440587.5 + float64(at.UnixMilli())/86_400_000, nil
}
