package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// patience is for a browser on a busy machine.
const patience = 2 * time.Minute

// browser is a Chromium with the page in it.
type browser struct {
	t   *testing.T
	ctx context.Context //nolint:containedctx // chromedp keeps its tab in one

	mu       sync.Mutex
	problems []string // exceptions and what the policy refused
}

func open(t *testing.T) *browser {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.Flag("lang", "en"))
	if os.Getuid() == 0 { // root has no sandbox to lose
		options = append(options, chromedp.NoSandbox)
	}
	allocator, closeAll := chromedp.NewExecAllocator(context.WithoutCancel(t.Context()), options...)
	tab, closeTab := chromedp.NewContext(allocator)
	ctx, cancel := context.WithTimeout(tab, 5*time.Minute)
	b := &browser{t: t, ctx: ctx}
	console := chromedp.Console(ctx)
	read := make(chan struct{})
	go func() {
		defer close(read)
		for m, err := range console {
			if err != nil {
				return
			}
			// That an answer was 401, or that nobody answered, is part of the test.
			if m.IsException() || m.Source == "security" || m.Type == "error" && m.Source != "network" {
				b.mu.Lock()
				b.problems = append(b.problems, m.String())
				b.mu.Unlock()
			}
		}
	}()
	t.Cleanup(func() {
		_ = chromedp.Cancel(tab)
		cancel()
		closeTab()
		closeAll()
		<-read
	})
	b.size(1280, 860)
	return b
}

// open goes to a view, with the token.
func (b *browser) open(s *service, view string) {
	b.t.Helper()
	b.visit(s, view)
	b.give(token)
	b.holds(`!['unknown', 'refused'].includes(document.getElementById('line').dataset.state)`)
}

// visit goes to a view without a token, for which the page asks.
func (b *browser) visit(s *service, view string) {
	b.t.Helper()
	b.do(chromedp.Navigate("http://" + s.addr + "/" + view))
	b.holds(`document.getElementById('token-input')`)
}

// give answers the page that asks for a token.
func (b *browser) give(token string) {
	b.t.Helper()
	b.fill("#token-input", token)
	b.press("\r")
	b.holds(`!document.getElementById('token-input')`)
}

// blur takes the focus away.
var blur = chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
	_, err := chromedp.Run(ctx, chromedp.Evaluate[bool]("document.activeElement.blur(), true"))
	return err
})

// focus sets the focus on an element.
func focus(selector string) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
		_, err := chromedp.Run(ctx, chromedp.Evaluate[bool](fmt.Sprintf("document.querySelector(%q).focus(), true", selector)))
		return err
	})
}

func (b *browser) do(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	require.NoError(b.t, chromedp.Do(ctx, steps...))
}

func (b *browser) size(width, height int64) { b.do(chromedp.EmulateViewport(width, height)) }

func (b *browser) scheme(name string) {
	b.t.Helper()
	_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}},
	})
	require.NoError(b.t, err)
}

func (b *browser) click(selector string) {
	b.t.Helper()
	b.holds("document.querySelector(" + strconv.Quote(selector) + ")")
	b.do(chromedp.Click(chromedp.CSS(selector)))
}

func (b *browser) fill(selector, text string) {
	b.t.Helper()
	b.do(chromedp.SendKeys(chromedp.CSS(selector), text))
}

func (b *browser) press(key string) {
	b.t.Helper()
	b.do(chromedp.KeyEvent(key))
}

// text is what an element shows.
func (b *browser) text(selector string) string {
	b.t.Helper()
	text, err := chromedp.Run(b.ctx, chromedp.Evaluate[string](fmt.Sprintf("document.querySelector(%q)?.innerText ?? ''", selector)))
	require.NoError(b.t, err)
	return text
}

// holds waits until an expression is true in the page.
func (b *browser) holds(expression string) {
	b.t.Helper()
	require.Eventually(b.t, func() bool {
		ok, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool]("Boolean("+expression+")"))
		return err == nil && ok
	}, patience, 50*time.Millisecond, expression)
}

// shows waits until an element shows a text.
func (b *browser) shows(selector, text string) {
	b.t.Helper()
	deadline := time.Now().Add(patience)
	for !strings.Contains(b.text(selector), text) {
		require.True(b.t, time.Now().Before(deadline), "%s shows no %q; the page is\n%s", selector, text, b.text("body"))
	}
}

// picture is kept if WAYBILL_PICTURES names a directory.
func (b *browser) picture(name string) {
	b.t.Helper()
	dir := os.Getenv("WAYBILL_PICTURES")
	if dir == "" {
		return
	}
	b.do(chromedp.Sleep(300 * time.Millisecond)) // what moves has arrived
	image, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
	require.NoError(b.t, err)
	require.NoError(b.t, os.WriteFile(filepath.Join(dir, name+".png"), image, 0o600))
}

// well holds that nothing went wrong in the page, and that no text became code.
func (b *browser) well() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	require.Empty(b.t, b.problems)
	pwned, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool]("window.pwned === true"))
	require.NoError(b.t, err)
	require.False(b.t, pwned)
}
