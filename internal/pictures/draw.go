package main

import (
	"fmt"
	"html"
	"strings"
)

// Sizes, in pixels of a picture that is not scaled.
const (
	apart   = 190 // between two lanes
	margin  = 95  // beside the first and the last
	first   = 92  // where the steps begin
	leading = 15  // from line to line
	wide    = 6.6 // a character of a step's text, at most nearly
	noted   = 168 // the width of a note on one lane
)

const style = `  <style>
    .lane { fill: #f6f8fa; stroke: #8c959f; }
    .life { stroke: #afb8c1; stroke-dasharray: 3 4; }
    .arrow { fill: none; stroke: #0969da; stroke-width: 1.6; }
    .answer { stroke-dasharray: 6 4; }
    .lost { stroke: #cf222e; }
    .head { fill: #0969da; }
    .note { fill: #fff8c5; stroke: #d4a72c; }
    .crash { fill: #ffebe9; stroke: #cf222e; }
    .frame { fill: #ddf4ff; fill-opacity: .45; stroke: #54aeff; stroke-dasharray: 6 4; }
    text { fill: #1f2328; text-anchor: middle; }
    .name { font-weight: 600; font-size: 14px; }
    .label { fill: #0969da; text-anchor: start; }
    @media (prefers-color-scheme: dark) {
      .lane { fill: #161b22; stroke: #6e7681; }
      .life { stroke: #484f58; }
      .arrow { stroke: #58a6ff; }
      .lost { stroke: #ff7b72; }
      .head { fill: #58a6ff; }
      .note { fill: #2e2306; stroke: #9e6a03; }
      .crash { fill: #3c1618; stroke: #ff7b72; }
      .frame { fill: #0c2d4d; stroke: #388bfd; }
      text { fill: #e6edf3; }
      .label { fill: #58a6ff; }
    }
  </style>
`

// wrap breaks text into lines of so many pixels.
func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && float64(len([]rune(line+" "+word)))*wide > float64(width) {
			lines = append(lines, line)
			line = ""
		}
		line = strings.TrimPrefix(line+" "+word, " ")
	}
	return append(lines, line)
}

func (p *picture) x(lane int) int { return margin + lane*apart }

func write(b *strings.Builder, lines []string, x, y int, class string) {
	if class != "" {
		class = fmt.Sprintf(` class="%s"`, class)
	}
	for i, line := range lines {
		fmt.Fprintf(b, "  <text%s x=\"%d\" y=\"%d\">%s</text>\n", class, x, y+i*leading, html.EscapeString(line))
	}
}

// begun is a picture without what it shows.
func begun(b *strings.Builder, title, about string, width, height int) {
	fmt.Fprintf(b, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif\" font-size=\"12\" role=\"img\" aria-labelledby=\"title about\">\n", width, height)
	fmt.Fprintf(b, "  <title id=\"title\">%s</title>\n  <desc id=\"about\">%s</desc>\n%s", html.EscapeString(title), html.EscapeString(about), style)
	b.WriteString("  <defs><marker id=\"head\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"7\" markerHeight=\"7\" orient=\"auto\"><path class=\"head\" d=\"M0 0 8 4 0 8z\"/></marker></defs>\n")
}

// svg draws what stands behind first.
func (p *picture) svg() string {
	var steps, frames strings.Builder
	y, opened, label := first, 0, ""
	width := p.x(len(p.lanes)-1) + margin
	for _, s := range p.steps {
		switch s.kind {
		case begin:
			opened, label = y-8, s.text
			y += 20
		case end:
			fmt.Fprintf(&frames, "  <rect class=\"frame\" x=\"6\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"8\"/>\n", opened, width-12, y-opened)
			write(&steps, []string{label}, 14, opened+15, "label")
			y += 18
		case note, crash:
			y = p.box(&steps, s, y)
		default:
			y = p.arrow(&steps, s, y)
		}
	}
	var b strings.Builder
	begun(&b, p.title, p.about, width, y+10)
	b.WriteString(frames.String())
	for i, l := range p.lanes {
		x := p.x(i)
		fmt.Fprintf(&b, "  <path class=\"life\" d=\"M%d 52V%d\"/>\n  <rect class=\"lane\" x=\"%d\" y=\"12\" width=\"156\" height=\"40\" rx=\"8\"/>\n", x, y, x-78)
		write(&b, []string{l.label}, x, 37, "name")
	}
	b.WriteString(steps.String())
	b.WriteString("</svg>\n")
	return b.String()
}

// box is over the lanes that a step names.
func (p *picture) box(b *strings.Builder, s step, y int) int {
	left, right := min(p.x(s.from), p.x(s.to))-noted/2, max(p.x(s.from), p.x(s.to))+noted/2
	lines := wrap(s.text, right-left-12)
	height := len(lines)*leading + 10
	fmt.Fprintf(b, "  <rect class=\"%s\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"5\"/>\n", s.kind, left, y, right-left, height)
	write(b, lines, (left+right)/2, y+16, "")
	return y + height + 14
}

// arrow has its text above it.
func (p *picture) arrow(b *strings.Builder, s step, y int) int {
	from, to := p.x(s.from), p.x(s.to)
	lines := wrap(s.text, max(from, to)-min(from, to)-14)
	write(b, lines, (from+to)/2, y+10, "")
	at := y + len(lines)*leading + 2
	class, tip := "arrow", ` marker-end="url(#head)"`
	switch s.kind {
	case answer:
		class += " answer"
	case lost:
		class, tip = "arrow lost", ""
		to = from + (to-from)*3/4
		fmt.Fprintf(b, "  <path class=\"%s\" d=\"M%d %dl12 12m0 -12l-12 12\"/>\n", class, to-6, at-6)
	}
	fmt.Fprintf(b, "  <path class=\"%s\" d=\"M%d %dH%d\"%s/>\n", class, from, at, to, tip)
	return at + 16
}
