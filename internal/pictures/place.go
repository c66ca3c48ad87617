package main

import (
	"fmt"
	"strings"
)

// Sizes of boxes, in pixels.
const (
	edge     = 10 // around the picture
	between  = 70 // two columns
	below    = 46 // a row of boxes
	lineHigh = 17 // a line of a box
	rowHigh  = 30 // a row of a transaction
	rowApart = 36 // from row to row
	labelled = 28 // a transaction's label
	caption  = 20 // what is under a box
)

func (o *box) natural() (width, height int) {
	for i, text := range o.texts {
		wider := 1.0
		if i == 0 && o.kind != transaction {
			wider = 1.25 // a name is larger, and bold
		}
		width = max(width, int(float64(len([]rune(text)))*wide*wider)+32)
	}
	if o.kind == transaction {
		return width + 28, labelled + (len(o.texts)-1)*rowApart + 8
	}
	return width, 20 + len(o.texts)*lineHigh
}

// place gives each box its column's width. A broker is as high as its text, others are as high as their row, so that arrows from the rows
// of a transaction meet what is beside it.
func (b *boxes) place() (width, height int) {
	var wides, highs, captions []int
	for _, o := range b.all {
		w, h := o.natural()
		wides, highs, captions = atLeast(wides, o.column, w), atLeast(highs, o.row, h), atLeast(captions, o.row, 0)
		if o.under != "" {
			captions[o.row-1] = caption
		}
	}
	for _, o := range b.all {
		_, h := o.natural()
		o.x, o.y, o.width, o.height = edge, edge, wides[o.column-1], highs[o.row-1]
		for _, w := range wides[:o.column-1] {
			o.x += w + between
		}
		for i, h := range highs[:o.row-1] {
			o.y += h + captions[i] + below
		}
		if o.kind == broker {
			o.y, o.height = o.y+(o.height-h)/2, h
		}
		width, height = max(width, o.x+o.width+edge), max(height, o.y+highs[o.row-1]+captions[o.row-1]+edge)
	}
	return width, height
}

func atLeast(sizes []int, number, size int) []int {
	for len(sizes) < number {
		sizes = append(sizes, 0)
	}
	sizes[number-1] = max(sizes[number-1], size)
	return sizes
}

// svg draws the arrows above the boxes, as their tips end at them.
func (b *boxes) svg() string {
	width, height := b.place()
	var s strings.Builder
	begun(&s, b.title, b.about, width, height)
	for _, o := range b.all {
		o.draw(&s)
	}
	for _, a := range b.arrows {
		fmt.Fprintf(&s, "  <path class=\"arrow\" d=\"%s\" marker-end=\"url(#head)\"/>\n", a.path())
	}
	s.WriteString("</svg>\n")
	return s.String()
}

func (o *box) draw(b *strings.Builder) {
	middle := o.x + o.width/2
	class := map[string]string{plain: "lane", broker: "note", transaction: "frame"}[o.kind]
	fmt.Fprintf(b, "  <rect class=\"%s\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"8\"/>\n", class, o.x, o.y, o.width, o.height)
	if o.kind == transaction {
		write(b, o.texts[:1], o.x+14, o.y+18, "label")
		for i, text := range o.texts[1:] {
			at := o.middleOf(i + 1)
			fmt.Fprintf(b, "  <rect class=\"lane\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"4\"/>\n", o.x+14, at-rowHigh/2, o.width-28, rowHigh)
			write(b, []string{text}, middle, at+4, "")
		}
	} else {
		at := o.y + (o.height-len(o.texts)*lineHigh)/2 + 13
		write(b, o.texts[:1], middle, at, "name")
		for i, text := range o.texts[1:] {
			write(b, []string{text}, middle, at+(i+1)*lineHigh, "")
		}
	}
	if o.under != "" {
		write(b, []string{o.under}, middle, o.y+o.height+caption-4, "")
	}
}

// middleOf is the middle of a row of a transaction, or of the box itself.
func (o *box) middleOf(row int) int {
	if row == 0 {
		return o.y + o.height/2
	}
	rows := (len(o.texts)-1)*rowApart - (rowApart - rowHigh)
	return o.y + labelled + (o.height-labelled-8-rows)/2 + (row-1)*rowApart + rowHigh/2
}

// path is straight if both boxes are at one height or in one column, and a curve otherwise.
func (a arrow) path() string {
	from, to := a.from, a.to
	if from.column == to.column {
		return fmt.Sprintf("M%d %dV%d", from.x+from.width/2, from.y+from.height, to.y)
	}
	left, right, y, at := from.x+from.width, to.x, from.middleOf(a.row), to.middleOf(0)
	switch {
	case y > to.y && y < to.y+to.height:
		return fmt.Sprintf("M%d %dH%d", left, y, right)
	case at < from.y:
		y -= from.height / 4
	case at > from.y+from.height:
		y += from.height / 4
	}
	half := (left + right) / 2
	return fmt.Sprintf("M%d %dC%d %d %d %d %d %d", left, y, half, y, half, at, right, at)
}
