# A small image of one program: a static binary, no shell, a user without rights. For several platforms:
#
#   docker buildx build --platform linux/amd64,linux/arm64 -t waybill .
#   docker build --build-arg PROGRAM=./examples/ordering -t ordering .
#
# Programs of your own are built the same way: nothing needs a C compiler.
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG PROGRAM=./cmd/waybill TARGETOS TARGETARCH
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -ldflags="-s -w" -o /program $PROGRAM

FROM gcr.io/distroless/static-debian12:nonroot
COPY --from=build /program /program
USER 65532:65532
EXPOSE 9000
ENTRYPOINT ["/program"]
