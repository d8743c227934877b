// A loop that only moves words from one FIFO to the next: it reads where there is a word and the
// next FIFO will have room for it, holds the word in a register, and writes it.
module move #(
    parameter WIDTH = 32,
    parameter DEPTH = 16
) (
    input wire clk,
    input wire rst,
    input wire in_valid,
    output wire in_ready,
    input wire [WIDTH-1:0] in_word,
    output wire taken,      // a word is read from the first FIFO
    output wire out_empty,
    input wire pop,         // never while empty
    output wire [WIDTH-1:0] word  // the word popped in the cycle before
);
    localparam COUNT_BITS = $clog2(DEPTH) + 1;

    wire in_empty, out_ready;
    wire [WIDTH-1:0] read;
    reg [WIDTH-1:0] held;
    reg read_valid, held_valid;
    reg [COUNT_BITS-1:0] room;  // places of the next FIFO that no word is on its way to
    wire unused = out_ready;

    assign taken = ~in_empty & room != 0 & ~rst;
    always @(posedge clk) begin
        held <= read;
        if (rst) begin
            read_valid <= 1'b0;
            held_valid <= 1'b0;
            room <= COUNT_BITS'(DEPTH);
        end else begin
            read_valid <= taken;
            held_valid <= read_valid;
            room <= room + COUNT_BITS'(pop) - COUNT_BITS'(taken);
        end
    end

    weight_fifo #(.WIDTH(WIDTH), .DEPTH(DEPTH)) from (
        .clk(clk),
        .rst(rst),
        .in_valid(in_valid),
        .in_ready(in_ready),
        .in_word(in_word),
        .empty(in_empty),
        .pop(taken),
        .word(read)
    );
    weight_fifo #(.WIDTH(WIDTH), .DEPTH(DEPTH)) to (
        .clk(clk),
        .rst(rst),
        .in_valid(held_valid),
        .in_ready(out_ready),
        .in_word(held),
        .empty(out_empty),
        .pop(pop),
        .word(word)
    );
endmodule
